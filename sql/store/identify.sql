-- The server, database and role of the store, its encoding and commit settings, and its time.
select
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
    current_database()::text as database,
    current_user::text as role,
    current_setting('server_encoding') as encoding,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('synchronous_standby_names') <> '' as synchronous,
    clock_timestamp() as now
