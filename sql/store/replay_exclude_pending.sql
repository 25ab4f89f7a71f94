-- Excludes the events of pending deliveries. The condition names both halves of the attempts for the two partial indexes.
-- $1 replay, $2 webhook, $3 and $4 the ids of events between which the replay reads
insert into walhook.replay_exclusion (replay_id, event_id)
select $1, event_id
from walhook.delivery
where webhook_id = $2 and (attempt = 1 or attempt > 1) and event_id >= $3 and event_id < $4
on conflict do nothing
