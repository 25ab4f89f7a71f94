-- $1 user, $2 webhook, $3 from this hour on. No row if the user has no such webhook; one row of nulls if it has no hours.
select hour, delivered, failed, permanently_failed, cancelled, durations
from walhook.webhook
left join walhook.webhook_hour on webhook_hour.webhook_id = webhook.id and hour >= $3
where webhook.user_id = $1 and webhook.id = $2
order by hour
