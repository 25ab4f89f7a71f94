-- name: emit_heartbeat
-- Writes a heartbeat to the WAL, which the slot streams, and returns the server's timeline. $1 its
-- content
select
    pg_logical_emit_message(true, 'walhook', $1) as lsn,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline

-- name: heartbeat_waits
-- Whether the commit of a heartbeat waits for a synchronous standby, of this process or of an
-- earlier one
select exists (
    select from pg_stat_activity
    where wait_event = 'SyncRep' and usename = current_user and datname = current_database()
      and query like '%pg_logical_emit_message(true, ''walhook'', $1)%'
) as waits

-- name: find
-- The state of a replication slot. $1 its name
select
    slot.plugin::text as plugin,
    coalesce(slot.database = current_database(), false) as in_this_database,
    slot.active_pid,
    slot.wal_status,
    slot.confirmed_flush_lsn as confirmed,
    -- Since version 17.
    (to_jsonb(slot) ->> 'failover')::boolean as failover
from pg_catalog.pg_replication_slots slot
where slot.slot_name = $1

-- name: drop
-- Drops the slot. $1 its name
select pg_drop_replication_slot($1)

-- name: end_reader
-- Ends the connection that reads a slot. $1 the slot, $2 the process of the connection
select pg_terminate_backend(slot.active_pid)
from pg_catalog.pg_replication_slots slot
where slot.slot_name = $1 and slot.active_pid = $2

-- name: lag
-- The WAL that the slot retains, and the part of it that has not been acknowledged, in bytes. $1
-- the slot's name
select
    slot.active,
    coalesce(slot.wal_status, 'unknown') as wal_status,
    pg_wal_lsn_diff(now.lsn, slot.restart_lsn)::float8 as retained,
    pg_wal_lsn_diff(now.lsn, slot.confirmed_flush_lsn)::float8 as unacknowledged,
    -- The WAL that can still be written before the slot is invalidated; null if it is unlimited.
    slot.safe_wal_size::float8 as left_to_limit,
    current_setting('max_slot_wal_keep_size') as keep_size
from pg_catalog.pg_replication_slots slot,
    (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end as lsn) now
where slot.slot_name = $1

-- name: on_standby
-- The state of a replication slot on a server that may be a standby; nothing on a primary. $1 the
-- slot's name
select
    slot.slot_name is not null as exists,
    -- Since version 17.
    coalesce((to_jsonb(slot) ->> 'synced')::boolean, false) as synced,
    coalesce(slot.temporary, false) as temporary,
    to_jsonb(slot) ->> 'invalidation_reason' as invalidation_reason
from (select) as one
left join pg_catalog.pg_replication_slots slot on slot.slot_name = $1
where pg_catalog.pg_is_in_recovery()
