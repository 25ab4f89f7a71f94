-- Locks the last delivery of each key, so that it cannot end before the deliveries that are about to be inserted behind it are visible.
-- Waits until a delivery that is just ending has ended. In order of id, like every transaction. Does not conflict with claims that are
-- under way, nor with retries, which keep the row.
-- $1 webhooks, $2 keys
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
