-- Locks the deliveries of a batch and all pending deliveries of some webhooks, in order of id, before the webhooks are locked. Each part
-- has its own index.
-- $1 ids of the batch, $2 webhooks
select id
from walhook.delivery
where id = any (array(
    select unnest($1::uuid[])
    union all
    select id from walhook.delivery where webhook_id = any ($2::uuid[]) and attempt = 1
    union all
    select id from walhook.delivery where webhook_id = any ($2::uuid[]) and attempt > 1
))
order by id
for update
