-- Finds the delivery of an attempt, and whether it can be redelivered. $1 user, $2 webhook, $3 the attempt
select webhook.active, attempt.delivery_id, attempt.event_id, attempt.sequence, attempt.test,
    (select true from walhook.event where event.id = attempt.event_id) is true as kept
from walhook.webhook
join walhook.attempt on attempt.webhook_id = webhook.id
where webhook.user_id = $1 and webhook.id = $2 and attempt.id = $3
