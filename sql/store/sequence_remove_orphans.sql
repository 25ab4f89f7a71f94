-- Removes the numbers of webhooks that were deleted: not with the webhook, because storing events locks numbers before deliveries.
delete from walhook.webhook_sequence
where not exists (select from walhook.webhook where webhook.id = webhook_sequence.webhook_id)
