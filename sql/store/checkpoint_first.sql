-- $1 slot, $2 system identifier, $3 timeline, $4 commit, $5 ordinal, $6 resume, $7 and $8 the window's snapshots, $9 what the publication
-- streams; null for an outbox
insert into walhook.checkpoint
    (slot, system_identifier, timeline, commit_lsn, ordinal, resume_lsn, window_from, window_to, publication_members)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
