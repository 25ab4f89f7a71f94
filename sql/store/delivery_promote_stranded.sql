-- Makes first deliveries of keys due that are parked although nothing is pending before them. Visits a number of keys, in order of webhook
-- and key. A build that does not know keys removes deliveries without making the next one due. Leaves out webhooks that are inactive or were
-- deleted: what they have pending is being cancelled, in no order.
-- $1 webhook and $2 key after which to start, $3 keys to visit at most
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
