-- $1 user, $2 webhook, $3 delivery. No row if the delivery has ended.
select delivery.round, delivery.attempt, nullif(delivery.due_at, 'infinity') as due_at, delivery.lease is not null as leased
from walhook.delivery
where delivery.id = $3
  and delivery.webhook_id = $2
  and exists (select from walhook.webhook where user_id = $1 and id = $2)
