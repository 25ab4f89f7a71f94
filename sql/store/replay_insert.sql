-- Builds without replays take jobs by `due_at`.
-- $1 id, $2 user, $3 webhook, $4 since, $5 until, $6 events, $7 labels, $8 expected deliveries, $9 the most unfinished jobs
insert into walhook.recovery
    (id, webhook_id, since, until, outcomes, missed, kind, phase, total, due_at, replay_due_at, events, label_ids, last_sequence)
select $1, webhook.id, $4, $5, array[]::text[], false, 'replay', 'pending', $8, 'infinity', now(), $6, $7,
    (select last from walhook.event_sequence)
from walhook.webhook
where webhook.user_id = $2 and webhook.id = $3
    and (select count(*) from walhook.recovery where finished_at is null and webhook_id = $3) < $9::bigint
