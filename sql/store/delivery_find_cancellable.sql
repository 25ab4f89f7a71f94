-- Visits webhooks that have pending deliveries, in order of id, and returns those that are inactive or were deleted, the last one
-- visited, and how many were visited. Each visit is two index lookups, whatever number of deliveries is pending.
-- $1 webhook after which to start, $2 webhooks to visit at most
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
