-- name: advance
-- Advances the checkpoint if no other process has moved it. The same position on another timeline
-- is of other changes. $1 slot, $2 commit and $3 ordinal expected, $4 commit, $5 ordinal, $6
-- resume, $7 timeline, $8 and $9 the window's snapshots, $10 the id of the process that must hold
-- the claim; null when the WAL is read. $11 timeline expected, $12 the pages of the outbox that
-- were read last
update walhook.checkpoint
set commit_lsn = $4, ordinal = $5, resume_lsn = $6, timeline = $7, updated_at = now(), window_from = $8, window_to = $9,
    outbox_pages = $12
where slot = $1 and commit_lsn = $2 and ordinal = $3 and timeline = $11 and ($10::uuid is null or reader = $10)

-- name: age
-- Seconds since the checkpoint last moved. $1 slot
select extract(epoch from now() - updated_at)::float8 from walhook.checkpoint where slot = $1

-- name: claim
-- Makes a process the only one that may advance the checkpoint: batches that others have read and
-- not stored are rejected from now on. While the outbox is read, it does not matter what the
-- publication streams. $1 slot, $2 the process's id
update walhook.checkpoint
set reader = $2, publication_members = case when window_from is null then publication_members end
where slot = $1

-- name: delete
-- $1 slot
delete from walhook.checkpoint where slot = $1

-- name: enter_timeline
-- Moves the checkpoint to another timeline if no other process has moved it. From then on, no batch
-- that was read on an earlier timeline is stored. Always durable: WAL of the new timeline is
-- acknowledged next. $1 slot, $2 commit, $3 ordinal and $4 timeline expected, $5 timeline
update walhook.checkpoint
set timeline = $5
where slot = $1 and commit_lsn = $2 and ordinal = $3 and timeline = $4 and window_to is null
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)

-- name: first
-- $1 slot, $2 system identifier, $3 timeline, $4 commit, $5 ordinal, $6 resume, $7 and $8 the
-- window's snapshots, $9 what the publication streams; null for an outbox
insert into walhook.checkpoint
    (slot, system_identifier, timeline, commit_lsn, ordinal, resume_lsn, window_from, window_to, publication_members)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: hand_over
-- Prepares the switch to the WAL: the outbox is read up to a snapshot, then the WAL from an LSN.
-- The claim of a process that reads the outbox now ends, because it does not know the snapshot. $1
-- slot, $2 snapshot, $3 LSN
update walhook.checkpoint
set handover_snapshot = $2, handover_lsn = $3, reader = null
where slot = $1 and window_to is not null

-- name: handed_over
-- Forgets a switch to the WAL that is complete. $1 slot
update walhook.checkpoint
set handover_snapshot = null, handover_lsn = null
where slot = $1 and window_to is null

-- name: hold
-- Locks the checkpoint until the transaction ends. $1 slot
select from walhook.checkpoint where slot = $1 for update

-- name: read
-- $1 slot, $2 the id of the process that must hold the claim; null skips this check
select system_identifier, timeline, commit_lsn, ordinal, resume_lsn, window_from, window_to, handover_snapshot, handover_lsn,
    outbox_pages
from walhook.checkpoint
where slot = $1 and ($2::uuid is null or reader = $2)

-- name: publication_members
-- Reads what the publication streamed at the last start of the stream. $1 slot
select publication_members from walhook.checkpoint where slot = $1

-- name: store_publication_members
-- Stores what the publication streams. $1 slot, $2 the members
update walhook.checkpoint set publication_members = $2 where slot = $1 and publication_members is distinct from $2

-- name: lock_repair
-- Allows one repair of a slot at a time. Assigns no transaction id, for which the creation of a
-- slot would wait. $1 slot
select pg_try_advisory_xact_lock(hashtextextended('walhook repair ' || $1, 0))
