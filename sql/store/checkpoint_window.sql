-- $1 slot
select window_from, window_to, handover_snapshot, handover_lsn
from walhook.checkpoint
where slot = $1
