-- Leases what is due of one class, a share for each webhook, going round the webhooks that have any: from the one behind $3.
-- Always gives at least one row: how far round it went, and where the last webhook stands.
-- $1 lease, $2 its length in seconds, $3 webhook to begin behind, $4 webhooks to visit at most, $5 rows at most,
-- $6 rows of each webhook at most, $7 and $8 webhooks for which that is another number, and the numbers
with recursive turn (webhook_id, visited) as (
    (select webhook_id, 1 from walhook.delivery where attempt > 1 and webhook_id > $3::uuid order by webhook_id limit 1)
    union all
    select next.webhook_id, turn.visited + 1
    from turn
    cross join lateral (
        select webhook_id from walhook.delivery
        where attempt > 1 and webhook_id > turn.webhook_id order by webhook_id limit 1
    ) as next
    where turn.visited < $4::integer
),
due as (
    select mine.id
    from turn
    cross join lateral (
        select id from walhook.delivery
        where attempt > 1 and webhook_id = turn.webhook_id and due_at <= now()
        order by due_at
        limit coalesce(($8::bigint[])[array_position($7::uuid[], turn.webhook_id)], $6::bigint)
        for update skip locked
    ) as mine
    limit $5::bigint
),
claimed as (
    -- The array keeps this an index scan, whatever the planner thinks of the number of rows.
    update walhook.delivery set lease = $1::uuid, due_at = now() + make_interval(secs => $2)
    where id = any (array(select id from due))
    returning id, webhook_id, event_id, round, attempt
)
select circle.visited, circle.last, claimed.id, claimed.webhook_id, claimed.event_id, claimed.round, claimed.attempt,
    event.kind, event.occurred_at, event.data
from (select count(*) as visited, (array_agg(webhook_id order by visited desc))[1] as last from turn) as circle
left join claimed on true
-- One look by id for each, never a join over the days' partitions; the event itself may be gone by age.
left join lateral (
    select kind, occurred_at, data::text as data from walhook.event where event.id = claimed.event_id offset 0
) as event on true
