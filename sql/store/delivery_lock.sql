-- $1 user, $2 webhook: holds what is pending for it, in order of id, before the webhook itself is held. Who records answers
-- locks in the same order. Both halves of the condition on the attempt are there for the two partial indexes.
select id
from walhook.delivery
where webhook_id = (select id from walhook.webhook where user_id = $1 and id = $2)
  and (attempt = 1 or attempt > 1)
order by id
for update
