-- Advances the checkpoint if no other process has moved it. The same position on another timeline is of other changes.
-- $1 slot, $2 commit and $3 ordinal expected, $4 commit, $5 ordinal, $6 resume, $7 timeline, $8 and $9 the window's snapshots,
-- $10 the id of the process that must hold the claim; null when the WAL is read. $11 timeline expected,
-- $12 the pages of the outbox that were read last
update walhook.checkpoint
set commit_lsn = $4, ordinal = $5, resume_lsn = $6, timeline = $7, updated_at = now(), window_from = $8, window_to = $9,
    outbox_pages = $12
where slot = $1 and commit_lsn = $2 and ordinal = $3 and timeline = $11 and ($10::uuid is null or reader = $10)
