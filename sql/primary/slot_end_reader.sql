-- Ends the connection that reads a slot. $1 the slot, $2 the process of the connection
select pg_terminate_backend(slot.active_pid)
from pg_catalog.pg_replication_slots slot
where slot.slot_name = $1 and slot.active_pid = $2
