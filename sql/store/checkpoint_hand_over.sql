-- The outbox is to be read up to a snapshot, then the log from a place. A process that reads the outbox now does not know this: its
-- claim ends.
-- $1 slot, $2 snapshot, $3 place
update walhook.checkpoint
set handover_snapshot = $2, handover_lsn = $3, reader = null
where slot = $1 and window_to is not null
