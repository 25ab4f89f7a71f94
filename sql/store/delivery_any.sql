-- Whether the webhook has pending deliveries. $1 webhook
select exists (select from walhook.delivery where webhook_id = $1 and attempt = 1)
    or exists (select from walhook.delivery where webhook_id = $1 and attempt > 1)
