-- The outbox is to be read up to a snapshot, then the log from a place. $1 slot, $2 snapshot, $3 place
update walhook.checkpoint
set handover_snapshot = $2, handover_lsn = $3
where slot = $1 and window_to is not null
