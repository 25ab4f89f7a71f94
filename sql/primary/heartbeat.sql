-- Writes a heartbeat to the WAL, which the slot streams, and returns the server's timeline. $1 its content
select
    pg_logical_emit_message(true, 'walhook', $1) as lsn,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline
