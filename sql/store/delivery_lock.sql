-- $1 user, $2 webhook. Locks its pending deliveries in order of id, before the webhook is locked: the recording of attempts locks
-- in the same order. The two halves of the condition on the attempt match the two partial indexes.
select id
from walhook.delivery
where webhook_id = (select id from walhook.webhook where user_id = $1 and id = $2)
  and (attempt = 1 or attempt > 1)
order by id
for update
