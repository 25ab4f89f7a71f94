-- name: holder
-- The session that keeps one of the tables from being locked: one that vacuums it or changes its
-- definition, or else the one with the oldest transaction. $1 the tables' quoted names
select
    case when held.pid is null then 'a prepared transaction'
    else 'process ' || held.pid || coalesce(
        ' (' || nullif(activity.application_name, '') || ')',
        -- Only workers of the server have no user.
        case when activity.pid is not null and activity.usesysid is null then ' (autovacuum)' end,
        ''
    ) end
from pg_catalog.pg_locks held
left join pg_catalog.pg_stat_activity activity on activity.pid = held.pid
where held.granted and held.pid is distinct from pg_backend_pid() and held.locktype = 'relation'
    and held.database = (select oid from pg_catalog.pg_database where datname = current_database())
    and held.relation in (select to_regclass(name) from unnest($1::text[]) name)
order by held.mode in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock'), activity.xact_start
limit 1

-- name: limit
-- Bounds the wait for a lock to less than deadlock_timeout: a session that waits for this one while
-- this one waits for it would otherwise be aborted as deadlocked.
select set_config('statement_timeout', greatest(setting::int * 4 / 5, 50)::text, true)
from pg_catalog.pg_settings
where name = 'deadlock_timeout'

-- name: quiesce
-- Waits for vacuums and for other changes of the table's definition. This wait blocks no statement
-- that reads or writes rows, and no other lock is held meanwhile. PostgreSQL cancels an autovacuum
-- only for a session that has waited for deadlock_timeout, and never one that prevents wraparound.
select
    set_config('lock_timeout', (setting::int * 2)::text, true),
    set_config('statement_timeout', '0', true)
from pg_catalog.pg_settings
where name = 'deadlock_timeout';
lock table only {table} in share update exclusive mode;

-- name: table
lock table only {table} in {mode} mode;
