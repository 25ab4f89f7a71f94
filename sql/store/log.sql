-- The log: the events of a store, by their numbers, for the stores that read them from there.

-- name: page
-- Reads the next events on the log's server, and in the first row, which is no event: the store, the
-- server and the number of its last event. Then follows the event at $1, if the log has it. All
-- belong to one snapshot, so every event up to `last` was visible to it. Events of other shards have
-- only an id and a number. $1 the number after which to read, $2 rows at most, $3 the reader's cell,
-- or null: then `epoch` is that of any cell, $4 and $5 its first and last shard
select counter.store_id, counter.last, (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
    case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end as timeline,
    (select epoch from walhook.cell where $3::text is null or name = $3 limit 1) as epoch,
    -- Before all events, in the order of the index: sorting would cost more than reading.
    -1::bigint as sequence, null::uuid as id, null as user_id, null as kind, null::bigint as label_id,
    null::timestamptz as occurred_at, null::pg_lsn as commit_lsn, null::boolean as repaired, null as data
from walhook.event_sequence as counter
union all
select null, null, null, null, null, sequence, id, case when is_own then user_id end, case when is_own then kind end,
    case when is_own then label_id end, case when is_own then occurred_at end, case when is_own then commit_lsn end,
    case when is_own then repaired end, case when is_own then data::text end
from (
    select *, shard between $4::int and $5::int as is_own
    from walhook.event
    where sequence >= $1
    order by sequence
    limit $2
) as page
order by sequence

-- name: numbers
-- Lists numbers and ids of the log's events of some shards, the last ones first. $1 the highest
-- number, $2 rows at most, $3 and $4 the first and the last shard
select sequence, id
from walhook.event
where sequence <= $1 and shard between $3::int and $4::int
order by sequence desc
limit $2

-- name: compare
-- Compares events of the log with this store: the highest number at which an event was read, the
-- lowest number of an event that is not here, and whether any is here. An event that is older than
-- all events of this store may have been dropped here, and is not missing. $1 numbers, $2 ids
with compared as materialized (
    select listed.number,
        listed.id < coalesce(
            (select id from walhook.event where sequence is not null order by id limit 1), 'ffffffff-ffff-ffff-ffff-ffffffffffff'
        ) as is_older,
        -- An index lookup for each event: a scalar subquery is never turned into a join.
        (select ordinal from walhook.event where event.id = listed.id) as read_at
    from unnest($1::bigint[], $2::uuid[]) as listed (number, id)
)
select max(number) filter (where read_at = number) as last_read,
    min(number) filter (where read_at is null and not is_older) as first_missing,
    coalesce(bool_or(read_at is not null), false) as has_common
from compared

-- name: count_after
-- How many events this store has after one. $1 its id
select counter.last - event.sequence
from walhook.event_sequence as counter, walhook.event as event
where event.id = $1

-- name: stored
-- Returns which of these events this store has. $1 ids
select id from unnest($1::uuid[]) as listed (id) where (select true from walhook.event where event.id = listed.id)

-- name: notify
-- Wakes the processes that read this store's events.
select pg_notify('walhook_events', '')
