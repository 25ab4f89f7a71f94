-- Writes a heartbeat to the WAL, which the slot streams. $1 its content
select pg_logical_emit_message(true, 'walhook', $1)
