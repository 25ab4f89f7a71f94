-- The session that has held a lock on one of the tables for longest. $1 the tables' quoted names
select
    case when held.pid is null then 'a prepared transaction'
    else 'process ' || held.pid || coalesce(' (' || nullif(activity.application_name, '') || ')', '') end
from pg_catalog.pg_locks held
left join pg_catalog.pg_stat_activity activity on activity.pid = held.pid
where held.granted and held.pid is distinct from pg_backend_pid()
    and held.relation in (select to_regclass(name) from unnest($1::text[]) name)
order by activity.xact_start
limit 1
