-- $1 user, $2 from this hour on
select webhook_hour.webhook_id, webhook_hour.hour, webhook_hour.delivered,
       webhook_hour.failed + webhook_hour.permanently_failed as failed
from walhook.webhook
join walhook.webhook_hour on webhook_hour.webhook_id = webhook.id
where webhook.user_id = $1 and webhook_hour.hour >= $2
