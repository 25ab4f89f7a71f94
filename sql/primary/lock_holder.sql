-- The session that keeps one of the tables from being locked: one that vacuums it or changes its definition, or else the one with the
-- oldest transaction. $1 the tables' quoted names
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
