-- name: close
-- Closes all gaps of a slot, together with the checkpoint that they were measured from. $1 slot
update walhook.gap set repaired_at = now() where slot = $1 and repaired_at is null

-- name: open
-- $1 slot
select reason, detail from walhook.gap where slot = $1 and repaired_at is null order by id

-- name: record
-- Records a gap, unless it is open already or the checkpoint that it was measured from has moved:
-- then it was repaired. $1 slot, $2 reason, $3 detail, $4 where that checkpoint resumes; null for a
-- gap that does not depend on a checkpoint
insert into walhook.gap (slot, reason, detail)
select $1, $2, $3
where $4::pg_lsn is null
    or exists (select from walhook.checkpoint where slot = $1 and resume_lsn = $4 for share)
on conflict (slot, reason) where repaired_at is null do nothing
