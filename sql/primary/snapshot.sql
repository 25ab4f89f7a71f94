-- The current snapshot and the current position in the WAL
select pg_current_snapshot()::text as snapshot, pg_current_wal_insert_lsn() as inserted,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline,
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier
