-- name: insert
-- The first checkpoint of a slot. $1 slot, $2 system identifier, $3 timeline, $4 commit, $5 resume,
-- $6 window, $7 and $8 its snapshots, $9 the last row, $10 the pages that were read last, $11
-- ordinal, $12 to $14 the log's store and the number and the id of its event, $15 what the
-- publication streams
insert into walhook.checkpoint
    (slot, system_identifier, timeline, commit_lsn, resume_lsn, window_number, window_from, window_to, last_row,
     read_pages, ordinal, log_store, log_number, log_event, publication_members)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: get
-- $1 slot, $2 the id of the process that must hold the claim; null skips this check
select system_identifier, timeline, commit_lsn, resume_lsn, window_number, window_from, window_to, last_row, read_pages,
    ordinal, log_store, log_number, log_event, handover_snapshot, handover_lsn
from walhook.checkpoint
where slot = $1 and ($2::uuid is null or reader = $2)

-- name: publication_members
-- Reads what the publication streamed at the last start of the stream. $1 slot
select publication_members from walhook.checkpoint where slot = $1

-- name: age
-- Seconds since the checkpoint last moved. $1 slot
select extract(epoch from now() - updated_at)::float8 from walhook.checkpoint where slot = $1

-- name: lock
-- Locks the checkpoint until the transaction ends. $1 slot
select from walhook.checkpoint where slot = $1 for update

-- name: advance
-- Advances the checkpoint if no other process has moved it. The same position on another timeline
-- is of other changes. $1 slot, $2 to $7 the expected timeline, commit, window, ordinal, and number
-- and id of the log's event, $8 the id of the process that must hold the claim; null when the WAL or
-- a log is read. $9 timeline, $10 commit, $11 resume, $12 window, $13 and $14 its snapshots, $15 the
-- last row, $16 the pages that were read last, $17 ordinal, $18 and $19 number and id of the log's
-- event
update walhook.checkpoint
set timeline = $9, commit_lsn = $10, resume_lsn = $11, window_number = $12, window_from = $13, window_to = $14,
    last_row = $15, read_pages = $16, ordinal = $17, log_number = $18, log_event = $19, updated_at = now(),
    -- While the outbox is read, it does not matter what the publication streams.
    publication_members = case when $12::bigint is null then publication_members end
where slot = $1 and timeline = $2 and commit_lsn is not distinct from $3 and window_number is not distinct from $4
    and ordinal is not distinct from $5 and log_number is not distinct from $6 and log_event is not distinct from $7
    and ($8::uuid is null or reader = $8)

-- name: claim
-- Makes a process the only one that may advance the checkpoint: batches that others have read and
-- not stored are rejected from now on. $1 slot, $2 the process's id
update walhook.checkpoint set reader = $2 where slot = $1

-- name: enter_timeline
-- Moves the checkpoint to another timeline if no other process has moved it. From then on, no batch
-- that was read on an earlier timeline is stored. Always durable: WAL of the new timeline is
-- acknowledged next. $1 slot, $2 commit, $3 ordinal and $4 timeline expected, $5 timeline
update walhook.checkpoint
set timeline = $5
where slot = $1 and commit_lsn = $2 and ordinal is not distinct from $3 and timeline = $4
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)

-- name: set_publication_members
-- Stores what the publication streams. $1 slot, $2 the members
update walhook.checkpoint set publication_members = $2 where slot = $1 and publication_members is distinct from $2

-- name: prepare_switch
-- Prepares the switch to the WAL: the outbox is read up to a snapshot, then the WAL from an LSN.
-- The claim of a process that reads the outbox now ends, because it does not know the snapshot. $1
-- slot, $2 snapshot, $3 LSN
update walhook.checkpoint
set handover_snapshot = $2, handover_lsn = $3, reader = null
where slot = $1 and window_number is not null

-- name: forget_switch
-- Forgets a switch to the WAL that is complete. $1 slot
update walhook.checkpoint
set handover_snapshot = null, handover_lsn = null
where slot = $1 and window_number is null

-- name: delete
-- $1 slot
delete from walhook.checkpoint where slot = $1

-- name: lock_repair
-- Allows one repair of a slot at a time. Assigns no transaction id, for which the creation of a
-- slot would wait. $1 slot
select pg_try_advisory_xact_lock(hashtextextended('walhook repair ' || $1, 0))
