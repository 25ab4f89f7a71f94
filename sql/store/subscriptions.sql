-- The webhooks of these users, with everything that a delivery needs. Of webhooks that may get a delivery, also the number of the last
-- one. Those numbers stay locked until the commit: in order of id, so that no two transactions that number deliveries can deadlock.
-- Nothing is locked for a webhook that is inactive or subscribed to none of these events.
-- $1 user ids, $2 events
with held as materialized (
    select webhook_id, last
    from walhook.webhook_sequence
    where webhook_id = any (array(
        select id from walhook.webhook where user_id = any ($1::text[]) and active and events && $2::text[]
    ))
    order by webhook_id
    for update
)
select webhook.id, webhook.user_id, webhook.events, webhook.active, webhook.url, webhook.secret, webhook.secret_key_id,
    webhook.ordering, webhook.headers, webhook.headers_key_id, webhook.filter::text, held.last, webhook.activation,
    webhook.private_key, webhook.private_key_key_id, webhook.previous_secret, webhook.previous_secret_key_id,
    webhook.previous_private_key, webhook.previous_private_key_key_id, webhook.previous_expires_at
from walhook.webhook
left join held on held.webhook_id = webhook.id
where webhook.user_id = any ($1::text[])
