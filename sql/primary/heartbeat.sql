-- A heartbeat through the log: it must come back through the slot. $1 content
select pg_logical_emit_message(true, 'walhook', $1)
