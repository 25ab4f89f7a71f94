-- Locks the pending deliveries of a webhook, in order of id, before the webhook is locked: recording attempts locks in the same
-- order. The condition names both halves of the attempts for the two partial indexes.
-- $1 user, $2 webhook
select id
from walhook.delivery
where webhook_id = (select id from walhook.webhook where user_id = $1 and id = $2)
  and (attempt = 1 or attempt > 1)
order by id
for update
