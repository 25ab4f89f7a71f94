-- Records a gap, unless it is open already or the checkpoint that it was measured from has moved: then it was repaired. $1 slot,
-- $2 reason, $3 detail, $4 where that checkpoint resumes; null for a gap that does not depend on a checkpoint
insert into walhook.gap (slot, reason, detail)
select $1, $2, $3
where $4::pg_lsn is null
    or exists (select from walhook.checkpoint where slot = $1 and resume_lsn = $4 for share)
on conflict (slot, reason) where repaired_at is null do nothing
