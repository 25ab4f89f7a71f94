-- $1 slot, $2 the id of the process that must hold the claim; null skips this check
select system_identifier, timeline, commit_lsn, ordinal, resume_lsn, window_from, window_to, handover_snapshot, handover_lsn,
    outbox_pages
from walhook.checkpoint
where slot = $1 and ($2::uuid is null or reader = $2)
