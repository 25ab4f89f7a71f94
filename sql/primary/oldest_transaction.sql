-- The oldest open transaction. A new slot waits for every transaction that was open before it.
select holder from (
    select 'process ' || pid || coalesce(' (' || application_name || ')', '') as holder, backend_xid as xid
    from pg_catalog.pg_stat_activity
    where backend_xid is not null and pid <> pg_backend_pid()
    union all
    select 'prepared transaction ' || quote_literal(gid), transaction
    from pg_catalog.pg_prepared_xacts
) open
order by age(xid) desc
limit 1
