-- Removes deliveries that can never be sent because their webhook or their event is gone. Returns their webhooks and order keys.
-- $1 webhooks, $2 deliveries
delete from walhook.delivery
where webhook_id = any ($1::uuid[]) and not exists (select from walhook.webhook where webhook.id = delivery.webhook_id)
    or id = any ($2::uuid[]) and not exists (select from walhook.event where event.id = delivery.event_id)
returning webhook_id, order_key
