-- Locks the recovery that has been due longest. Other replicas skip it until the transaction ends.
select id, webhook_id, since, until, outcomes, missed, phase, position,
    (select active from walhook.webhook where webhook.id = webhook_id) is true as active
from walhook.recovery
where finished_at is null and due_at <= now()
order by due_at
limit 1
for update skip locked
