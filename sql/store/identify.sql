-- Which server and database the store is in, and what time it is there.
select
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
    current_database()::text as database,
    clock_timestamp() as now
