-- Which server and database the store is in, how its commits are kept, and what time it is there.
select
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
    current_database()::text as database,
    current_user::text as role,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('synchronous_standby_names') <> '' as synchronous,
    clock_timestamp() as now
