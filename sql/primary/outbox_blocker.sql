-- The session that keeps one of the tables from being locked: one that vacuums it or changes its definition, or else the oldest
-- transaction that has written to one. $1 OIDs
select
    'process ' || activity.pid || coalesce(' of ' || activity.usename, '')
        || coalesce(
            ' (' || nullif(activity.application_name, '') || ')',
            -- Only workers of the server have no user.
            case when activity.usesysid is null then ' (autovacuum)' end,
            ''
        )
        || coalesce(', in a transaction since ' || activity.xact_start::timestamptz(0)::text, '')
        || ', on ' || locks.relation::regclass::text as holder
from pg_catalog.pg_locks locks
join pg_catalog.pg_stat_activity activity on activity.pid = locks.pid
where locks.locktype = 'relation' and locks.granted and locks.relation = any($1::oid[])
    and locks.mode not in ('AccessShareLock', 'RowShareLock') and locks.pid <> pg_backend_pid()
    and locks.database = (select oid from pg_catalog.pg_database where datname = current_database())
order by locks.mode = 'RowExclusiveLock', activity.xact_start
limit 1
