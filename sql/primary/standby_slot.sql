-- The state of a replication slot on a server that may be a standby; nothing on a primary. $1 the slot's name
select
    slot.slot_name is not null as exists,
    -- Since version 17.
    coalesce((to_jsonb(slot) ->> 'synced')::boolean, false) as synced,
    coalesce(slot.temporary, false) as temporary,
    to_jsonb(slot) ->> 'invalidation_reason' as invalidation_reason
from (select) as one
left join pg_catalog.pg_replication_slots slot on slot.slot_name = $1
where pg_catalog.pg_is_in_recovery()
