-- $1 slot, $2 the process that must be the one to move it; null where that does not matter
select system_identifier, timeline, commit_lsn, ordinal, resume_lsn
from walhook.checkpoint
where slot = $1 and ($2::uuid is null or reader = $2)
