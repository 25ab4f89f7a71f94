-- The log: the events of a store, by their numbers, for the stores that read them from there.

-- name: page
-- Reads the next events of some shards on the log's server. The first row is no event, but has the
-- state of the log. All rows belong to one snapshot, so every event up to `last` was visible to it.
-- $1 the number after which to read, $2 how many numbers to read, from the first one that the log
-- has, $3 the reader's cell, or null: then `epoch` is that of any cell, $4 and $5 its first and last
-- shard, $6 events at most, $7 the lowest id of the events to look at: it chooses the partitions to read
with first as materialized (
    select sequence as number from walhook.event where id >= $7 and sequence > $1 order by sequence limit 1
),
newest as materialized (
    select sequence as number, id
    from walhook.event
    where id >= $7 and sequence > $1 and sequence < (select number from first) + $2
    order by sequence desc
    limit 1
)
-- Before all events, in the order of the index: sorting would cost more than reading.
select -1::bigint as sequence, null::uuid as id, null as user_id, null as kind, null::bigint as label_id,
    null::timestamptz as occurred_at, null::pg_lsn as commit_lsn, null::boolean as repaired, null as data,
    json_build_object(
        'store', store_id,
        'now', clock_timestamp(),
        'last', last,
        'system_identifier', (select system_identifier from pg_catalog.pg_control_system()),
        'timeline', case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end,
        'epoch', (select epoch from walhook.cell where $3::text is null or name = $3 limit 1),
        'before', (select id from walhook.event where id >= $7 and sequence = $1 limit 1),
        'newest', (select json_build_array(number, id) from newest),
        -- The numbers of shards that are not read are counted in the index.
        'missing', coalesce((select number from newest) - $1, 0)
            - (
                select count(*)
                from walhook.event
                where id >= $7 and sequence > $1 and sequence <= (select number from newest)
            )
    ) as state
from walhook.event_sequence
union all
select sequence, id, user_id, kind, label_id, occurred_at, commit_lsn, repaired, data::text, null
from (
    select *
    from walhook.event
    where id >= $7 and sequence > $1 and sequence <= (select number from newest) and shard between $4::int and $5::int
    order by sequence
    limit $6
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
