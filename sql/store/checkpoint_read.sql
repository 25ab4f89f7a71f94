-- $1 slot
select system_identifier, timeline, commit_lsn, ordinal, resume_lsn
from walhook.checkpoint
where slot = $1
