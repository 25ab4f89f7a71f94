-- name: begin_pipelined
-- Generic plans: for some statements, making a custom plan each time takes longer than running
-- them. A durable commit: what a crash of the store can lose must not be acknowledged to the slot.
begin;
set local plan_cache_mode = force_generic_plan;
select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'

-- name: connections_waiting
-- How many connections of this role and application wait for a lock or for a synchronous standby.
-- The application is the first word of the name: `processes` needs the others.
select count(*)
from pg_stat_activity
where (wait_event = 'SyncRep' or wait_event_type = 'Lock')
    and usename = current_user and datname = current_database()
    and split_part(application_name, ' ', 1) = split_part(current_setting('application_name'), ' ', 1)

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
    pg_postmaster_start_time() as started_at,
    clock_timestamp() as now

-- name: one_snapshot
-- Makes all statements of the transaction see the same state. Must be its first one.
set transaction isolation level repeatable read, read only

-- name: plan_by_index
-- Makes every statement on deliveries use an index. The table is empty at one time and has a
-- million rows at another, and a cached plan for the empty table would read all of the rows.
select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    -- The plan does not depend on the parameters, so each statement is planned only once.
    set_config('plan_cache_mode', 'force_generic_plan', true)

-- name: processes
-- The processes that are connected, by the names of their sessions, which end with version, roles,
-- number, and host and process id. The ids of a process's claims end with its number. $1 slot
with session as (
    select regexp_match(application_name, ' ([0-9]+[.][^ ]+) ([a-z,]+) ([0-9a-f]{8}) ([^ ]+)$') as part,
        client_addr, backend_start, state_change
    from pg_stat_activity
    where datname = current_database()
),
claim as (
    select right(coalesce(
        (select holder from walhook.capture_lease where slot = $1 and until > clock_timestamp()),
        (select reader from walhook.acknowledgement where slot = $1)
    )::text, 8) as number
)
select part[1] as version, string_to_array(part[2], ',') as roles, part[4] as name, host(min(client_addr)) as address,
    coalesce(part[3] = claim.number, false) as captures, min(backend_start) as connected_at,
    extract(epoch from clock_timestamp() - max(state_change))::float8 as silent_seconds
from session, claim
where part is not null
group by part, claim.number
order by connected_at, name
limit 1000

-- name: schema_created
-- Whether the schema exists, also if no migration was applied
select to_regnamespace('walhook') is not null

-- name: drop_schema
drop schema if exists walhook cascade

-- name: size
-- The bytes of all tables, with indexes and long values
select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint
from pg_catalog.pg_class
where relnamespace = to_regnamespace('walhook') and relkind = 'r'

-- name: schema_exists
select to_regclass('walhook.checkpoint') is not null
