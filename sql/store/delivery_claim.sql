-- Leases due deliveries of one class: up to a number for each webhook, visiting the webhooks that have any in order of id, after $3 and
-- up to $9. Returns those that have been due longest first, and of those due at the same time the one with the lowest number. Always
-- returns at least one row: how many webhooks were visited, and the last of them.
-- For retries, `attempt = 1` is replaced by `attempt > 1`. It is not a parameter: each class has a partial index of its own, which
-- generic plans use only for a literal condition.
-- $1 lease, $2 its length in seconds, $3 webhook to start after, $4 webhooks to visit at most, $5 rows at most,
-- $6 rows of each webhook at most, $7 and $8 webhooks with another limit, sorted, and these limits, $9 webhook to end with
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
    -- The update returns rows in order of id, and nested loops keep the order of this subquery. The time is looked up in an array: a join
    -- with `due` would compare every row with every other if it was planned while few deliveries were pending.
    select * from claimed
    order by (array(select due_at from due order by id))[width_bucket(id, array(select id from due order by id))], sequence, id
) as claimed on true
-- One lookup by id for each, never a join over the daily partitions. The event itself may have been removed by age.
left join lateral (
    select kind, occurred_at, data::text as data from walhook.event where event.id = claimed.event_id offset 0
) as event on true
