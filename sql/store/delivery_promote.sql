-- Makes the first delivery of each key due if it is parked, and returns it: under a lease and with its event, or without both if $3 is null.
-- The transaction has removed the deliveries before it. A row that another transaction has locked is skipped: that one cancels it, or
-- leaves it to delivery_promote_stranded.sql.
-- $1 webhooks, $2 keys, $3 lease, $4 its length in seconds
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
