-- The server's timeline. Null on a standby
select case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end as timeline
