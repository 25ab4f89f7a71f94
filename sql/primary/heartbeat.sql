-- Writes a heartbeat to the WAL, to come back through the slot. $1 its content
select pg_logical_emit_message(true, 'walhook', $1)
