-- $1 slot, $2 system identifier, $3 timeline, $4 commit, $5 ordinal, $6 resume
insert into walhook.checkpoint (slot, system_identifier, timeline, commit_lsn, ordinal, resume_lsn)
values ($1, $2, $3, $4, $5, $6)
