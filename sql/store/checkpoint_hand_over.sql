-- Prepares the switch to the WAL: the outbox is read up to a snapshot, then the WAL from an LSN. The claim of a process that reads the
-- outbox now ends, because it does not know the snapshot.
-- $1 slot, $2 snapshot, $3 LSN
update walhook.checkpoint
set handover_snapshot = $2, handover_lsn = $3, reader = null
where slot = $1 and window_to is not null
