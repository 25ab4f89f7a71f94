-- What standbys have to do with our slot. $1 its name
select
    current_setting('server_version_num')::int as version,
    exists (
        select from pg_catalog.pg_replication_slots slot
        -- Only since 17.
        where slot.slot_name = $1 and (to_jsonb(slot) ->> 'failover')::boolean
    ) as failover,
    -- Only since 17.
    coalesce(current_setting('synchronized_standby_slots', true), '') as setting,
    array(
        select slot_name::text from pg_catalog.pg_replication_slots where slot_type = 'physical' order by slot_name
    ) as physical
