-- Removes deliveries that can never be sent because their event is gone. Returns their webhooks and order keys.
-- $1 deliveries
delete from walhook.delivery
where id = any ($1::uuid[]) and not exists (select from walhook.event where event.id = delivery.event_id)
returning webhook_id, order_key
