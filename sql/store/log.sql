-- The log: the events of a store, by their numbers, for the stores that read them from there.

-- name: page
-- Reads the next events on the log's server. Always returns at least one row: the store, the server
-- and the number of its last event. The first event is the one at $1, if the log has it. All belong
-- to one snapshot, so every event up to `last` was visible to it. $1 the number after which to read,
-- $2 rows at most, $3 bytes of data after which the page ends, $4 the reader's cell, or null: then
-- `epoch` is that of any cell
select counter.store_id, counter.last, server.system_identifier, server.timeline, server.epoch, page.id, page.user_id, page.kind,
    page.sequence, page.label_id, page.occurred_at, page.commit_lsn, page.repaired, page.data
from walhook.event_sequence as counter
cross join (
    select (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
        case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end as timeline,
        (select epoch from walhook.cell where $4::text is null or name = $4 limit 1) as epoch
    offset 0
) as server
left join lateral (
    select id, user_id, kind, sequence, label_id, occurred_at, commit_lsn, repaired, data,
        sum(octet_length(data)) over (order by sequence rows between unbounded preceding and 1 preceding) as before
    from (
        select id, user_id, kind, sequence, label_id, occurred_at, commit_lsn, repaired, data::text as data
        from walhook.event
        where sequence >= $1
        order by sequence
        limit $2
    ) as next
    -- The first one has none before it, and is returned whatever its length is.
) as page on coalesce(page.before, 0) < $3::bigint
order by page.sequence

-- name: numbers
-- Lists numbers and ids of the log's events of some shards, the last ones first. $1 the highest
-- number, $2 rows at most, $3 and $4 the first and the last shard
select sequence, id
from walhook.event
where sequence <= $1 and walhook.shard(user_id) between $3 and $4
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
