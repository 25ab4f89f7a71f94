-- The WAL that the slot retains, and the part of it that has not been acknowledged, in bytes. $1 the slot's name
select
    slot.active,
    coalesce(slot.wal_status, 'unknown') as wal_status,
    pg_wal_lsn_diff(now.lsn, slot.restart_lsn)::float8 as retained,
    pg_wal_lsn_diff(now.lsn, slot.confirmed_flush_lsn)::float8 as unacknowledged,
    -- The WAL that can still be written before the slot is invalidated; null if it is unlimited.
    slot.safe_wal_size::float8 as left_to_limit
from pg_catalog.pg_replication_slots slot,
    (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end as lsn) now
where slot.slot_name = $1
