-- name: erase
-- Reads the next events in order of id, and removes the user's. Returns how many were read, the
-- last id, and how many were removed. $1 user, $2 the id after which to start, $3 rows to read
with examined as materialized (
    select id, user_id from walhook.event where id > $2 order by id limit $3
),
gone as (
    delete from walhook.event where id = any (array(select id from examined where user_id = $1)) returning id
)
select (select count(*) from examined) as examined, (select id from examined order by id desc limit 1) as last,
    (select count(*) from gone) as gone

-- name: deliveries
-- Returns the deliveries of an event: what is pending, and what the attempt log has of it. $1 the
-- user's webhooks, $2 the ids of the event's deliveries to them, $3 the event, $4 the lowest id of
-- an attempt, $5 attempts to read at most
with logged as materialized (
    select id, delivery_id, outcome from walhook.attempt where event_id = $3 and id >= $4 order by id desc limit $5
)
select wanted.id, wanted.webhook_id, ended.attempts, ended.outcome, ended.last_log,
    pending.due_at is not null as is_pending, nullif(pending.due_at, 'infinity') as due_at, pending.lease is not null as leased
from unnest($1::uuid[], $2::uuid[]) as wanted (webhook_id, id)
-- One lookup per webhook, never a join over the daily partitions.
left join lateral (
    select due_at, lease from walhook.pending where pending.id = wanted.id offset 0
) as pending on true
cross join lateral (
    select count(*) filter (where outcome <> 'cancelled') as attempts, (array_agg(outcome order by id desc))[1] as outcome,
        (array_agg(id order by id desc))[1] as last_log
    from logged
    where delivery_id = wanted.id
) as ended
where pending.due_at is not null or ended.outcome is not null
order by wanted.webhook_id

-- name: get
-- Reads an event. Tests are not events of the feed: no commit raised them. $1 user, $2 the event
select id, kind, occurred_at, label_id, data::text as data, sequence
from walhook.event
where user_id = $1 and id = $2 and sequence is not null

-- name: insert
-- $1 ids, $2 users, $3 kinds, $4 occurred, $5 commits, $6 ordinals, $7 labels, $8 data as text, $9
-- releases, $10 hashes of catalogue numbers, $11 tracks, $12 whether a repair found each, $13 shards
with counter as (
    update walhook.event_sequence set last = last + cardinality($1::uuid[]) returning last - cardinality($1::uuid[]) as first
)
insert into walhook.event (id, user_id, kind, occurred_at, commit_lsn, ordinal, label_id, data, release_id, catalogue, track_id,
    repaired, shard, sequence)
select id, user_id, kind, occurred_at, commit_lsn, ordinal, label_id, data::json, release_id, catalogue, track_id, repaired,
    shard, counter.first + number
from counter
cross join (
    -- Faster than one `unnest` of all arrays in `from`, which is materialised first.
    select unnest($1::uuid[]) as id, unnest($2::text[]) as user_id, unnest($3::text[]) as kind,
        unnest($4::timestamptz[]) as occurred_at, unnest($5::pg_lsn[]) as commit_lsn, unnest($6::bigint[]) as ordinal,
        unnest($7::bigint[]) as label_id, unnest($8::text[]) as data, unnest($9::bigint[]) as release_id,
        unnest($10::bigint[]) as catalogue, unnest($11::bigint[]) as track_id, unnest($12::boolean[]) as repaired,
        unnest($13::smallint[]) as shard, generate_subscripts($1::uuid[], 1) as number
) as raised

-- name: insert_test
-- $1 id, $2 user, $3 event, $4 the time of the event, $5 data
insert into walhook.event (id, user_id, kind, occurred_at, data)
values ($1, $2, $3, $4, $5::text::json)

-- name: in_commit_order
-- Returns the stored events in the order of their commits, with the release of each event that has
-- one. $1 events
select event.id, case when event.release ~ '^[0-9]{1,18}$' then event.release::bigint end as release
from unnest($1::uuid[]) as wanted (id)
-- One lookup by id for each, never a join over the daily partitions.
cross join lateral (
    select id, sequence, data ->> 'release_id' as release from walhook.event where event.id = wanted.id offset 0
) as event
order by event.sequence

-- name: releases_of_catalogue
-- $1 user, $2 the hash of a catalogue number, $3 the number in lower case, $4 events to read at most
select distinct numbered.release_id
from (
    select release_id, data ->> 'release_cat' as release_cat
    from walhook.event
    where catalogue = $2 and user_id = $1 and release_id is not null
    limit $4
) as numbered
where lower(numbered.release_cat) = $3

-- name: find_of_releases
-- Finds the newest events of a user that are about these releases. $1 user, $2 releases, $3 track, or
-- null, $4 the id below which to look, $5 events to read at most, $6 events to return at most
select id
from (
    select id
    from walhook.event
    where release_id = any ($2::bigint[]) and user_id = $1 and id < $4 and ($3::bigint is null or track_id = $3)
    limit $5
) as found
order by id desc
limit $6

-- name: find_of_track
-- Finds the newest events of a user that are about a track. $1 user, $2 track, $3 the id below which
-- to look, $4 events to read at most, $5 events to return at most
select id
from (select id from walhook.event where track_id = $2 and user_id = $1 and id < $3 limit $4) as found
order by id desc
limit $5

-- name: last_sequence
-- The number of the last event.
select last from walhook.event_sequence

-- name: feed_horizon
-- Returns the number of the last event that one filtered page examines. No row if there are fewer
-- events. $1 user, $2 the number after which to start, $3 the number of events to skip: one less
-- than to examine
select sequence from walhook.event where user_id = $1 and sequence > $2 order by sequence offset $3 limit 1

-- name: feed_newest
-- Lists a user's events, the newest first, with what of their data names what they are about. $1
-- user, $2 the number before which to start, $3 the lowest number to consider, $4 event, $5 rows at
-- most
select id, kind, occurred_at, label_id, sequence, walhook.about(data) as about
from walhook.event
where user_id = $1 and sequence < $2 and sequence >= $3 and ($4::text is null or kind = $4)
order by sequence desc
limit $5

-- name: filter_values
-- The labels, outlets and statuses of a user's newest events. A label has the catalogue number of its
-- newest release, and its name if the user owns it and its row follows the stream: relation 7 is the
-- table of labels. $1 user, $2 events to read at most, $3 values to return at most of each list
with newest as materialized (
    select sequence, label_id, release_cat as release, outlet_id, outlet_name as outlet,
        coalesce(status, new_status, delivery_status) as status
    from (
        select sequence, label_id, data
        from walhook.event
        where user_id = $1 and sequence is not null
        order by sequence desc
        limit $2
    ) as event
    cross join json_to_record(data) as named (
        release_cat text, outlet_id text, outlet_name text, status text, new_status text, delivery_status text
    )
)
(
    select 'label_ids' as list, label_id::text as value, stored.state::json->>1 as name, release
    from (
        select label_id, max(sequence) as latest,
            (array_agg(release order by sequence desc) filter (where release is not null))[1] as release
        from newest
        where label_id is not null
        group by label_id
        order by latest desc
        limit $3
    ) as label
    left join walhook.lookup_row as stored
        on stored.relation = 7 and stored.row_id = label_id and stored.state::json->>0 = $1
        and exists (select from walhook.lookup_table as followed where followed.relation = 7)
    order by latest desc
)
union all
(
    select 'outlet_ids', outlet_id, (array_agg(outlet order by sequence desc) filter (where outlet is not null))[1],
        null
    from newest
    where outlet_id is not null
    group by outlet_id
    order by max(sequence) desc
    limit $3
)
union all
(
    select 'statuses', status, null, null
    from newest
    where status is not null
    group by status
    order by max(sequence) desc
    limit $3
)

-- name: feed_newest_horizon
-- Returns the number of the last event that one filtered page of the list examines. No row if there
-- are fewer events. $1 user, $2 the number before which to start, $3 the number of events to skip:
-- one less than to examine
select sequence from walhook.event where user_id = $1 and sequence < $2 order by sequence desc offset $3 limit 1

-- name: feed_page
-- Reads a user's events in the order of their commits. Always returns at least one row: `last`, the
-- number of the last event of all users. It belongs to the same snapshot as the events, so every
-- event up to this number was visible to this statement. $1 user, $2 the number after which to
-- start, $3 the highest number to consider, $4 events, $5 label, $6 rows at most, $7 bytes of data
-- after which the page ends
select counter.last, page.id, page.kind, page.occurred_at, page.label_id, page.data, page.sequence, page.matching
from walhook.event_sequence as counter
left join lateral (
    select id, kind, occurred_at, label_id, data, sequence, count(*) over () as matching,
        sum(octet_length(data)) over (order by sequence rows between unbounded preceding and 1 preceding) as before
    from (
        select id, kind, occurred_at, label_id, data::text as data, sequence
        from walhook.event
        where user_id = $1 and sequence > $2 and sequence <= $3
          and ($4::text[] is null or kind = any ($4))
          and ($5::bigint is null or label_id = $5)
        order by sequence
        limit $6
    ) as matches
    -- The first one has none before it, and is returned whatever its length is.
) as page on coalesce(page.before, 0) < $7::bigint
order by page.sequence

-- name: feed_users
-- Returns which of these users have events between two numbers, the highest number that was read,
-- and how many events were read. $1 the number after which to start, $2 the highest number, $3
-- events to read at most, $4 users
with examined as materialized (
    select user_id, sequence from walhook.event where sequence > $1 and sequence <= $2 order by sequence limit $3
)
select array(select distinct user_id from examined where user_id = any ($4::text[])) as users,
    (select max(sequence) from examined) as last, (select count(*) from examined) as examined

-- name: scan_replay
-- Reads the next events of a user in the order of their commits, and returns those to deliver.
-- Always returns at least one row: how many events were read, and the number of the last. $1 user,
-- $2 and $3 the numbers after which and up to which to read, $4 and $5 the ids between which to
-- read: whole days, which choose partitions, $6 events to read, $7 replay, $8 events, $9 labels,
-- $10 since, $11 until, $12 events to return
with examined as materialized (
    select id, sequence, kind, label_id, occurred_at
    from walhook.event
    where user_id = $1 and sequence > $2 and sequence <= $3 and id >= $4 and id < $5
    order by sequence
    limit $6
),
found as materialized (
    select id, sequence, kind, label_id
    from examined
    where kind = any ($8::text[]) and ($9::bigint[] is null or label_id = any ($9)) and occurred_at >= $10 and occurred_at < $11
        -- An index lookup for each event: a scalar subquery is never turned into a join.
        and (select true from walhook.replay_exclusion where replay_id = $7 and event_id = examined.id) is null
    order by sequence
    limit $12
)
select read.examined, read.sequence as last_sequence, found.id, found.sequence, found.kind, found.label_id,
    (select data::text from walhook.event where event.id = found.id) as data
from (select count(*) as examined, max(sequence) as sequence from examined) as read
left join found on true
order by found.sequence
