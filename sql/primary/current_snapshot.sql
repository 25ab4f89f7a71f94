-- The current snapshot and the server's timeline. Fails on a standby
select pg_current_snapshot()::text as snapshot, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline
