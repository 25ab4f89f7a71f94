-- Forgets a switch to the WAL that is complete. $1 slot
update walhook.checkpoint
set handover_snapshot = null, handover_lsn = null
where slot = $1 and window_to is null
