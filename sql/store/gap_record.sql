-- A gap is measured from a checkpoint: where that is another by now, it was repaired meanwhile. $1 slot, $2 reason, $3 detail,
-- $4 where the checkpoint resumes; null where the gap is measured from nothing
insert into walhook.gap (slot, reason, detail)
select $1, $2, $3
where $4::pg_lsn is null
    or exists (select from walhook.checkpoint where slot = $1 and resume_lsn = $4 for share)
on conflict (slot, reason) where repaired_at is null do nothing
