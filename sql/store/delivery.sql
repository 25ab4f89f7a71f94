-- name: count_backlog
-- Counts pending deliveries of one class in the order of the class's index, from a position on: how
-- many, for how many seconds the oldest of them has been due, the last one's position, and how many
-- have exactly that position. The position is null if there is none. For retries, `attempt = 1` is
-- replaced by `attempt > 1`. $1 webhook and $2 due time from which to
-- start, $3 deliveries with exactly these to skip, $4 deliveries to count at most
with counted as materialized (
    select webhook_id, due_at from walhook.delivery
    where attempt = 1 and (webhook_id, due_at) >= ($1::uuid, $2::text::timestamptz)
    order by webhook_id, due_at
    offset $3 limit $4
),
final as (select webhook_id, due_at from counted order by webhook_id desc, due_at desc limit 1)
select count(*) as deliveries,
    -- Parked deliveries are due at infinity.
    coalesce(extract(epoch from now() - min(due_at) filter (where due_at < now())), 0)::float8 as oldest_due,
    (select webhook_id from final) as last_webhook,
    (select due_at::text from final) as last_due_at,
    count(*) filter (where (webhook_id, due_at) = (select webhook_id, due_at from final)) as same_as_last
from counted

-- name: any
-- Whether the webhook has pending deliveries. $1 webhook
select exists (select from walhook.delivery where webhook_id = $1 and attempt = 1)
    or exists (select from walhook.delivery where webhook_id = $1 and attempt > 1)
    or exists (select from walhook.handed_off where webhook_id = $1)

-- name: cancel
-- Cancels and logs pending deliveries of a webhook that is inactive or was deleted. Does nothing for an active webhook. Returns how many deliveries were removed,
-- and how many of them were logged: events may have been removed by age. All parts see the same
-- moment: what is pending while the webhook is inactive belongs to the time before, because a
-- webhook is activated only when nothing of it is pending. Rows that another transaction has locked
-- are skipped, so this waits for nobody. $1 webhook, $2 deliveries at most
with inactive as materialized (
    select
        case
            when webhook.id is null then 'the webhook was deleted'
            when webhook.disabled_at is null then 'the webhook was switched off'
            else 'the webhook was disabled'
        end as reason
    from (select $1::uuid as id) as wanted
    left join walhook.webhook on webhook.id = wanted.id
    where webhook.active is not true
),
fresh as materialized (
    select id from walhook.delivery
    where webhook_id = $1 and attempt = 1 and exists (select from inactive)
    order by due_at
    limit $2
    for update skip locked
),
retries as materialized (
    select id from walhook.delivery
    where webhook_id = $1 and attempt > 1 and exists (select from inactive)
    order by due_at
    limit $2 - (select count(*) from fresh)
    for update skip locked
),
gone as (
    -- The array makes this an index scan, whatever number of rows the planner expects.
    delete from walhook.delivery
    where id = any (array(select id from fresh union all select id from retries))
    returning id, event_id, round, attempt, sequence
),
logged as (
    insert into walhook.attempt
        (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome, error_kind, error_message,
         sequence)
    select walhook.uuid_v7(), $1, gone.id, gone.event_id, event.kind, gone.round, gone.attempt,
           date_trunc('milliseconds', clock_timestamp()), 'cancelled', 'webhook_inactive', inactive.reason,
           gone.sequence
    from gone
    cross join inactive
    -- One lookup by id for each, never a join over the daily partitions.
    join lateral (select kind from walhook.event where event.id = gone.event_id offset 0) as event on true
    returning delivery_id
)
select (select count(*) from gone) as removed, (select count(*) from logged) as logged

-- name: claim
-- Leases due deliveries of one class: up to a number for each webhook, visiting the webhooks that
-- have any in order of id, after $3 and up to $9. Returns those that have been due longest first,
-- and of those due at the same time the one with the lowest number. Always returns at least one
-- row: how many webhooks were visited, and the last of them. For retries, `attempt = 1` is replaced
-- by `attempt > 1`. It is not a parameter: each class has a partial index of its own, which generic
-- plans use only for a literal condition. $1 lease, $2 its length in seconds, $3 webhook to start
-- after, $4 webhooks to visit at most, $5 rows at most, $6 rows of each webhook at most, $7 and $8
-- webhooks with another limit, sorted, and these limits, $9 webhook to end with
with recursive visit (webhook_id, due_at, visited) as (
    (select webhook_id, due_at, 1 from walhook.delivery
     where attempt = 1 and webhook_id > $3::uuid and webhook_id <= $9::uuid order by webhook_id, due_at limit 1)
    union all
    select next.webhook_id, next.due_at, visit.visited + 1
    from visit
    cross join lateral (
        select webhook_id, due_at from walhook.delivery
        where attempt = 1 and webhook_id > visit.webhook_id and webhook_id <= $9::uuid order by webhook_id, due_at limit 1
    ) as next
    where visit.visited < $4::integer
),
due as (
    select of_webhook.id, of_webhook.due_at
    from visit
    cross join lateral (
        select id, due_at from walhook.delivery
        where attempt = 1 and webhook_id = visit.webhook_id and due_at <= now()
        order by due_at
        -- The limits are found by binary search.
        limit case when ($7::uuid[])[width_bucket(visit.webhook_id, $7)] = visit.webhook_id
              then ($8::bigint[])[width_bucket(visit.webhook_id, $7)] else $6::bigint end
        for update skip locked
    ) as of_webhook
    -- Most webhooks may have none that is due yet: then the index entry that was visited suffices.
    where visit.due_at <= now()
    limit $5::bigint
),
claimed as (
    -- The array makes this an index scan, whatever number of rows the planner expects.
    update walhook.delivery set lease = $1::uuid, due_at = now() + make_interval(secs => $2)
    where id = any (array(select id from due))
    returning id, webhook_id, event_id, round, attempt, sequence, order_key
)
select visits.visited, visits.last, claimed.id, claimed.webhook_id, claimed.event_id, claimed.round, claimed.attempt,
    claimed.sequence, claimed.order_key, event.kind, event.occurred_at, event.data,
    coalesce((select activation from walhook.webhook where webhook.id = claimed.webhook_id), 0) as activation
from (select count(*) as visited, (array_agg(webhook_id order by visited desc))[1] as last from visit) as visits
left join (
    -- The update returns rows in order of id, and nested loops keep the order of this subquery. The
    -- time is looked up in an array: a join with `due` would compare every row with every other if
    -- it was planned while few deliveries were pending.
    select * from claimed
    order by (array(select due_at from due order by id))[width_bucket(id, array(select id from due order by id))], sequence, id
) as claimed on true
-- One lookup by id for each, never a join over the daily partitions. The event itself may have been
-- removed by age.
left join lateral (
    select kind, occurred_at, data::text as data from walhook.event where event.id = claimed.event_id offset 0
) as event on true

-- name: count_fresh
-- Counts pending first attempts, up to a limit. $1 webhook, $2 the limit, $3 whether to count those
-- that wait for others too
select count(*)
from (
    select from walhook.pending
    -- A bound of the index: a million deliveries that wait are not read.
    where webhook_id = $1 and attempt = 1 and due_at <= case when $3::boolean then 'infinity' else now() + interval '1 year' end
    limit $2
) as pending

-- name: end
-- $1 ids
delete from walhook.delivery where id = any ($1::uuid[])

-- name: end_held
-- Removes the deliveries of those attempts that were made under the current lease, and returns the
-- attempts' positions, which are found as in `fence`. $1 ids in ascending order, $2
-- leases, $3 attempts
delete from walhook.delivery
where id = any ($1::uuid[])
  and lease = ($2::uuid[])[width_bucket(id, $1::uuid[])]
  and attempt = ($3::smallint[])[width_bucket(id, $1::uuid[])]
returning width_bucket(id, $1::uuid[])

-- name: expire
-- Cancels pending deliveries of events that are about to be removed because of their age, and logs
-- them. Returns how many, by webhook, and their order keys. A delivery's id begins with the time of
-- its event. $1 the lowest id to keep, $2 deliveries at most
with picked as materialized (
    select id from walhook.delivery where id < $1 order by id limit $2 for update
),
gone as (
    delete from walhook.delivery
    where id = any (array(select id from picked))
    returning id, webhook_id, event_id, round, attempt, sequence, order_key
),
logged as (
    insert into walhook.attempt
        (id, webhook_id, delivery_id, event_id, event_kind, round, attempt, started_at, outcome, error_kind, error_message,
         sequence)
    select walhook.uuid_v7(), gone.webhook_id, gone.id, gone.event_id, event.kind, gone.round, gone.attempt,
           date_trunc('milliseconds', clock_timestamp()), 'cancelled', 'event_expired',
           'the event became older than events are kept', gone.sequence
    from gone
    join lateral (select kind from walhook.event where event.id = gone.event_id offset 0) as event on true
    returning webhook_id
)
select gone.webhook_id, count(*) as removed, (select count(*) from logged where logged.webhook_id = gone.webhook_id) as logged,
    coalesce(array_agg(distinct gone.order_key) filter (where gone.order_key is not null), '{}') as keys
from gone
group by gone.webhook_id
order by gone.webhook_id

-- name: fence
-- Locks the deliveries of those attempts that were made under the current lease, and returns the
-- attempts' positions. In order of id, like every transaction. A position in the sorted array is
-- found by binary search, not by a join: a join's plan, made while few deliveries are pending,
-- would read all of them later. $1 ids in ascending order, $2 leases, $3 attempts
select width_bucket(id, $1::uuid[])
from walhook.delivery
where id = any ($1::uuid[])
  and lease = ($2::uuid[])[width_bucket(id, $1::uuid[])]
  and attempt = ($3::smallint[])[width_bucket(id, $1::uuid[])]
order by id
for update

-- name: find_cancellable
-- Visits webhooks that have pending deliveries, in order of id, and returns those that are inactive
-- or were deleted, the last one visited, and how many were visited. Each visit is two index
-- lookups, whatever number of deliveries is pending. $1 webhook after which to start, $2 webhooks
-- to visit at most
with recursive visit (webhook_id, visited) as (
    select least(
        (select webhook_id from walhook.delivery where attempt = 1 and webhook_id > $1::uuid order by webhook_id limit 1),
        (select webhook_id from walhook.delivery where attempt > 1 and webhook_id > $1 order by webhook_id limit 1)
    ), 1
    union all
    select least(
        (
            select webhook_id from walhook.delivery
            where attempt = 1 and webhook_id > visit.webhook_id order by webhook_id limit 1
        ),
        (
            select webhook_id from walhook.delivery
            where attempt > 1 and webhook_id > visit.webhook_id order by webhook_id limit 1
        )
    ), visit.visited + 1
    from visit
    where visit.webhook_id is not null and visit.visited < $2::integer
)
select count(*) as visited,
    (array_agg(webhook_id order by visited desc))[1] as last,
    coalesce(
        array_agg(webhook_id order by webhook_id)
            filter (where (select active from walhook.webhook where webhook.id = visit.webhook_id) is not true),
        '{}'
    ) as webhooks
from visit
where webhook_id is not null

-- name: insert
-- Stores deliveries and returns those that are parked: an earlier one with the same order key is
-- pending, or precedes it in this statement. Of the others, those with true in $4 are leased to this
-- process, and the rest is due at once for any replica. The last delivery of each key is locked, and
-- this statement began after that: an earlier delivery that it does not see has ended, and one that
-- it sees ends after the commit and makes the next one due. $1 ids, $2 webhooks, $3 events, $4 to
-- lease or not, $5 numbers, $6 order keys, $7 parked in any case or not, $8 lease, $9 its length in
-- seconds
with fresh as (
    select id, webhook_id, event_id, leased, sequence, order_key,
        -- A scalar subquery is one index lookup per row, whatever number of rows the planner
        -- expects.
        is_parked or order_key is not null and (
            select true from walhook.delivery as earlier
            where earlier.webhook_id = given.webhook_id and earlier.order_key = given.order_key
            limit 1
        ) is true as is_parked
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::boolean[], $5::bigint[], $6::bigint[], $7::boolean[])
        as given (id, webhook_id, event_id, leased, sequence, order_key, is_parked)
),
stored as (
    insert into walhook.delivery (id, webhook_id, event_id, due_at, lease, sequence, order_key)
    select id, webhook_id, event_id,
        case when is_parked then 'infinity' when leased then now() + make_interval(secs => $9) else now() end,
        case when leased and not is_parked then $8::uuid end,
        sequence, order_key
    from fresh
    returning id, due_at
)
select id from stored where due_at = 'infinity'

-- name: lock_tails
-- Locks the last delivery of each key, so that it cannot end before the deliveries that are about
-- to be inserted behind it are visible. Waits until a delivery that is just ending has ended. In
-- order of id, like every transaction. Does not conflict with claims that are under way, nor with
-- retries, which keep the row. $1 webhooks, $2 keys
select id
from walhook.delivery
where id = any (array(
    select (
        select delivery.id from walhook.delivery
        where delivery.webhook_id = wanted.webhook_id and delivery.order_key = wanted.order_key
        order by delivery.sequence desc limit 1
    )
    from unnest($1::uuid[], $2::bigint[]) as wanted (webhook_id, order_key)
))
order by id
for key share

-- name: oldest_due
-- For how many seconds the oldest pending delivery of one class has been due. Visits the webhooks
-- that have one, in order of id. Each visit is one index lookup, whatever number is pending. For
-- retries, as in `count_backlog`. $1 webhooks to visit at most
with recursive visit (webhook_id, due_at, visited) as (
    (select webhook_id, due_at, 1 from walhook.delivery where attempt = 1 order by webhook_id, due_at limit 1)
    union all
    select next.webhook_id, next.due_at, visit.visited + 1
    from visit
    cross join lateral (
        select webhook_id, due_at from walhook.delivery
        where attempt = 1 and webhook_id > visit.webhook_id
        order by webhook_id, due_at limit 1
    ) as next
    where visit.visited < $1::integer
)
select coalesce(extract(epoch from now() - min(due_at)), 0)::float8 from visit where due_at < now()

-- name: promote
-- Makes the first delivery of each key due if it is parked, and returns it: under a lease and with
-- its event, or without both if $3 is null. The transaction has removed the deliveries before it. A
-- row that another transaction has locked is skipped: that one cancels it, or leaves it to
-- `promote_stranded`. $1 webhooks, $2 keys, $3 lease, $4 its length in seconds
with first as materialized (
    select (
        select delivery.id from walhook.delivery
        where delivery.webhook_id = ended.webhook_id and delivery.order_key = ended.order_key
        order by delivery.sequence limit 1
    ) as id
    from unnest($1::uuid[], $2::bigint[]) as ended (webhook_id, order_key)
),
parked as materialized (
    select id from walhook.delivery
    where id = any (array(select id from first)) and due_at = 'infinity'
    order by id
    for no key update skip locked
),
promoted as (
    update walhook.delivery
    set lease = $3::uuid, due_at = case when $3::uuid is null then now() else now() + make_interval(secs => $4) end
    where id = any (array(select id from parked))
    returning id, webhook_id, event_id, round, attempt, sequence, order_key
)
select promoted.id, promoted.webhook_id, promoted.event_id, promoted.round, promoted.attempt, promoted.sequence, promoted.order_key,
    event.kind, event.occurred_at, event.data,
    coalesce((select activation from walhook.webhook where webhook.id = promoted.webhook_id), 0) as activation
from promoted
left join lateral (
    select kind, occurred_at, data::text as data from walhook.event
    where event.id = promoted.event_id and $3::uuid is not null
    offset 0
) as event on true

-- name: promote_stranded
-- Makes first deliveries of keys due that are parked although nothing is pending before them.
-- Visits a number of keys, in order of webhook and key. Leaves out webhooks that are inactive or
-- were deleted: what they have pending is being cancelled, in no order. $1 webhook and $2 key after
-- which to start, $3 keys to visit at most
with recursive visit (webhook_id, order_key, visited) as (
    (
        select webhook_id, order_key, 1 from walhook.delivery
        where order_key is not null and (webhook_id, order_key) > ($1::uuid, $2::bigint)
        order by webhook_id, order_key limit 1
    )
    union all
    select next.webhook_id, next.order_key, visit.visited + 1
    from visit
    cross join lateral (
        select webhook_id, order_key from walhook.delivery
        where order_key is not null and (webhook_id, order_key) > (visit.webhook_id, visit.order_key)
        order by webhook_id, order_key limit 1
    ) as next
    where visit.visited < $3::integer
),
first as materialized (
    select (
        select delivery.id from walhook.delivery
        where delivery.webhook_id = visit.webhook_id and delivery.order_key = visit.order_key
        order by delivery.sequence limit 1
    ) as id
    from visit
),
parked as materialized (
    select id from walhook.delivery
    where id = any (array(select id from first)) and due_at = 'infinity'
        and (select active from walhook.webhook where webhook.id = delivery.webhook_id)
    order by id
    for no key update skip locked
),
promoted as (
    update walhook.delivery set due_at = now() where id = any (array(select id from parked)) returning id
)
select (select count(*) from visit) as visited,
    (array_agg(webhook_id order by visited desc))[1] as webhook,
    (array_agg(order_key order by visited desc))[1] as key,
    (select count(*) from promoted) as promoted
from visit

-- name: read
-- Reads a delivery: its event, and what is pending. No row without the webhook. $1 user, $2 webhook,
-- $3 delivery, $4 its event
select event.kind, event.occurred_at, walhook.about(event.data) as about, event.sequence as feed_sequence,
    pending.id is not null as is_pending, pending.round, pending.attempt, pending.sequence,
    nullif(pending.due_at, 'infinity') as due_at, pending.lease is not null as leased,
    coalesce((select recovered from walhook.delivery_round where delivery_id = $3), '{}') as recovered
from walhook.webhook
-- A lateral join, so that the event is read by its index.
left join lateral (
    select kind, occurred_at, sequence, data
    from walhook.event
    where event.id = $4 and event.user_id = $1
    limit 1
) as event on true
left join walhook.pending on pending.id = $3 and pending.webhook_id = $2
where webhook.user_id = $1 and webhook.id = $2

-- name: redeliver
-- Starts the next round of deliveries: at attempt 1, due now. It replaces a pending retry, or an
-- attempt in flight, whose lease it ends. $1 ids in order, $2 events, $3 the rounds they are in, $4
-- webhook, $5 their numbers, $6 whether to skip those that are no longer in that round. A delivery
-- that is pending keeps its order key; another is outside the order. Locks deliveries before their
-- rounds, and both in order of id, like every transaction.
with held as materialized (
    select from walhook.delivery where id = any ($1::uuid[]) order by id for update
),
next as (
    insert into walhook.delivery_round (delivery_id, round, recovered)
    select id, round + 1, case when $6 then array[round + 1]::smallint[] else '{}' end from unnest($1::uuid[], $3::smallint[]) with ordinality as wanted (id, round, position)
    where round < 32767 and (select count(*) from held) >= 0
    order by position
    on conflict (delivery_id) do update set round = delivery_round.round + 1,
        -- The last hundred, so that the row stays small.
        recovered = case when $6 then (delivery_round.recovered || (delivery_round.round + 1)::smallint)
            [greatest(cardinality(delivery_round.recovered) - 98, 1):] else delivery_round.recovered end
    where delivery_round.round < 32767 and (not $6::boolean or delivery_round.round = excluded.round - 1)
    returning delivery_id, round
)
insert into walhook.delivery (id, webhook_id, event_id, round, due_at, sequence)
select next.delivery_id, $4::uuid, wanted.event_id, next.round, now(), wanted.sequence
from next
join unnest($1::uuid[], $2::uuid[], $5::bigint[]) as wanted (id, event_id, sequence) on wanted.id = next.delivery_id
order by next.delivery_id
on conflict (id) do update set round = excluded.round, attempt = 1, due_at = excluded.due_at, lease = null
returning id, round

-- name: release
-- Releases leases: the deliveries are due for the next claim.
-- $1 ids in ascending order, $2 leases
update walhook.delivery set lease = null, due_at = now()
where id = any ($1::uuid[]) and lease = ($2::uuid[])[width_bucket(id, $1::uuid[])]

-- name: remove_orphans
-- Removes deliveries that can never be sent because their event is gone. Returns their webhooks and
-- order keys. $1 deliveries
delete from walhook.delivery
where id = any ($1::uuid[]) and not exists (select from walhook.event where event.id = delivery.event_id)
returning webhook_id, order_key

-- name: retry
-- Schedules the next attempts. A delivery that was handed off gets its row. $1 ids, $2 webhooks, $3
-- events, $4 numbers, $5 order keys, $6 rounds, $7 numbers of the next attempts, $8 waits in seconds
insert into walhook.delivery (id, webhook_id, event_id, sequence, order_key, round, attempt, due_at)
select id, webhook_id, event_id, sequence, order_key, round, attempt, now() + make_interval(secs => wait)
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::smallint[], $7::smallint[], $8::double precision[])
    as failed (id, webhook_id, event_id, sequence, order_key, round, attempt, wait)
on conflict (id) do update set attempt = excluded.attempt, due_at = excluded.due_at, lease = null

-- name: erase
-- Locks the deliveries in order of id, like every transaction. It waits for an attempt that is
-- being recorded; one that is recorded later finds no delivery. Arrays, because a join's plan could
-- read all pending deliveries. Returns the deliveries that it found: none of them is pending
-- afterwards, but some may have ended or been cancelled while this waited for them. $1 webhook, $2
-- rows at most
with picked as materialized (
    select id from walhook.delivery where webhook_id = $1 and (attempt = 1 or attempt > 1) limit $2
),
held as materialized (
    select delivery.id
    from walhook.delivery
    where delivery.id = any (array(select id from picked))
    order by delivery.id
    for update
),
rounds as (
    delete from walhook.delivery_round where delivery_id = any (array(select id from held))
),
gone as (
    delete from walhook.delivery where id = any (array(select id from held))
)
select id from picked

-- name: count_pending
-- Counts pending deliveries: first attempts and retries of the webhook, up to a limit each, and
-- first attempts of the last chunk. $1 webhook, $2 the last chunk, $3 the limit of first attempts,
-- $4 the limit of retries
select
    (select count(*) from (select from walhook.pending where webhook_id = $1 and attempt = 1 limit $3) as pending) as first_attempts,
    (select count(*) from (select from walhook.delivery where webhook_id = $1 and attempt > 1 limit $4) as pending) as retries,
    (select count(*) from walhook.delivery where id = any ($2::uuid[]) and attempt = 1) as of_chunk
