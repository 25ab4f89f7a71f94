-- Counts what a replay would deliver, among a limited number of events and of rows of the attempt log. `except` is never planned as a
-- nested loop.
-- $1 user, $2 webhook, $3 and $4 the ids of events, $5 and $6 the ids of events without a number,
-- $7 the id after which the attempts are, $8 events, $9 labels, $10 since, $11 until, $12 rows to read of each, $13 whether to return
-- the events that were found, for a filter
with numbered as materialized (
    select id, sequence, kind, label_id, occurred_at
    from walhook.event
    where user_id = $1 and sequence > 0 and id > $3 and id < $4
    order by sequence
    limit $12
),
unnumbered as materialized (
    select id, user_id, sequence, ordinal, kind, label_id, occurred_at
    from walhook.event
    where id > $5 and id < $6
    order by id
    limit $12
),
events as (
    select id, kind, label_id, occurred_at from numbered
    union all
    select id, kind, label_id, occurred_at from unnumbered where user_id = $1 and sequence is null and ordinal is not null
),
logged as materialized (
    select event_id from walhook.attempt where webhook_id = $2 and id > $7 order by id limit $12
),
pending as materialized (
    select event_id from walhook.delivery where webhook_id = $2 and (attempt = 1 or attempt > 1) limit $12
),
found as (
    select id
    from events
    where kind = any ($8::text[]) and ($9::bigint[] is null or label_id = any ($9)) and occurred_at >= $10 and occurred_at < $11
    except
    select event_id from (select event_id from logged union all select event_id from pending) as had
),
returned as (
    select event.kind, event.label_id, event.data::text as data
    from found
    -- An index lookup for each event.
    cross join lateral (select kind, label_id, data from walhook.event where event.id = found.id offset 0) as event
    where $13::boolean
)
select (select count(*) from found) as found,
    (select count(*) from numbered) as numbered,
    greatest((select count(*) from unnumbered), (select count(*) from logged), (select count(*) from pending)) as others,
    (select min(sequence) from numbered) as first,
    (select max(sequence) from numbered) as last,
    -- Of the last event that might be delivered.
    (select sequence from walhook.event where user_id = $1 and sequence > 0 and id > $3 and id < $4 order by sequence desc limit 1)
        as highest,
    returned.kinds, returned.labels, returned.data
from (
    select coalesce(array_agg(kind), '{}') as kinds, coalesce(array_agg(label_id), '{}') as labels,
        coalesce(array_agg(data), '{}') as data
    from returned
) as returned
