-- Excludes events from the unfinished replays of a webhook: another job delivers them. $1 webhook, $2 events
insert into walhook.replay_exclusion (replay_id, event_id)
select replay.id, event_id
from walhook.recovery as replay
cross join unnest($2::uuid[]) as event_id
where replay.webhook_id = $1 and replay.kind = 'replay' and replay.finished_at is null
on conflict do nothing
