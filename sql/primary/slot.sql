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
