-- name: current_snapshot
-- The current snapshot and the server's timeline. Fails on a standby
select pg_current_snapshot()::text as snapshot, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline

-- name: oldest_transaction
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

-- name: settings
-- The server's version and settings, and what the current role may do on it.
select
    current_setting('server_version_num')::int as version,
    current_setting('wal_level') as wal_level,
    pg_is_in_recovery() as in_recovery,
    -- Managed services grant replication by membership in a role.
    role.rolsuper or role.rolreplication or exists (
        select from pg_catalog.pg_roles grantor
        where grantor.rolname = 'rds_replication' and pg_has_role(grantor.oid, 'member')
    ) as may_replicate,
    to_regrole('rds_replication') is not null as grants_replication,
    role.rolname::text as role,
    current_setting('server_encoding') as encoding,
    current_database()::text as database,
    (
        select pg_get_userbyid(datdba)::text from pg_catalog.pg_database where datname = current_database()
    ) as database_owner,
    has_database_privilege(current_database(), 'create') as may_create,
    current_setting('max_replication_slots')::int as max_slots,
    (select count(*) from pg_catalog.pg_replication_slots)::int as slots,
    array(
        select slot_name::text from pg_catalog.pg_replication_slots where slot_type = 'physical' order by slot_name
    ) as physical_slots,
    current_setting('max_slot_wal_keep_size') as slot_keep,
    current_setting('synchronous_standby_names') <> '' as synchronous,
    case when exists (
        select from regexp_matches(
            current_setting('synchronous_standby_names'), '"(?:[^"]|"")*"|[^\s,()"]+', 'g'
        ) as found (word)
        where lower(trim('"' from word[1])) in ('*', lower(current_setting('application_name')))
    ) then current_setting('application_name') end as own_standby,
    -- Since version 17.
    coalesce(current_setting('synchronized_standby_slots', true), '') as synchronized_slots,
    (select setting::bigint from pg_catalog.pg_settings where name = 'wal_sender_timeout') as sender_timeout,
    -- In seconds, since version 18.
    (select setting::bigint from pg_catalog.pg_settings where name = 'idle_replication_slot_timeout') as idle_slot_timeout,
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
    case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end as timeline,
    case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end as flushed,
    clock_timestamp() as now
from pg_catalog.pg_roles role
where role.rolname = current_user

-- name: synchronous
-- Whether commits wait for a standby, and this connection's application_name, which replication
-- uses too, if it counts as a standby. Also which server this is: its cluster, and its timeline,
-- which is null on a standby
select names <> '' as synchronous, case when exists (
    select from regexp_matches(names, '"(?:[^"]|"")*"|[^\s,()"]+', 'g') as found (word)
    where lower(trim('"' from word[1])) in ('*', lower(current_setting('application_name')))
) then current_setting('application_name') end as own_standby,
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
    case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end as timeline
from current_setting('synchronous_standby_names') as names

-- name: timeline
-- The server's timeline. Null on a standby
select case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end as timeline
