-- name: begin_pipelined
-- Generic plans: for some statements, making a custom plan each time takes longer than running
-- them. A durable commit: what a crash of the store can lose must not be acknowledged to the slot.
begin;
set local plan_cache_mode = force_generic_plan;
select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'

-- name: connections_waiting
-- How many connections of this role and application wait for a lock or for a synchronous standby
select count(*)
from pg_stat_activity
where (wait_event = 'SyncRep' or wait_event_type = 'Lock')
    and usename = current_user and datname = current_database()
    and application_name = current_setting('application_name')

-- name: durable
-- Makes this transaction's commit wait until it is flushed, even if the role or the database is set
-- not to. A setting that waits for more is kept.
select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'

-- name: identify
-- The server, database and role of the store, its encoding and commit settings, and its time.
select
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
    current_database()::text as database,
    current_user::text as role,
    current_setting('server_encoding') as encoding,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('synchronous_standby_names') <> '' as synchronous,
    clock_timestamp() as now

-- name: plan_by_index
-- Makes every statement on deliveries use an index. The table is empty at one time and has a
-- million rows at another, and a cached plan for the empty table would read all of the rows.
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    -- The plan does not depend on the parameters, so each statement is planned only once.
    set_config('plan_cache_mode', 'force_generic_plan', true)

-- name: schema_created
-- Whether the schema exists, also if no migration was applied
select to_regnamespace('walhook') is not null

-- name: drop_schema
drop schema if exists walhook cascade

-- name: schema_exists
select to_regclass('walhook.checkpoint') is not null
