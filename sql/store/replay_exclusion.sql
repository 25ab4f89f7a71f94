-- name: erase
-- $1 webhook, $2 rows at most
delete from walhook.replay_exclusion
where ctid = any (array(
    select exclusion.ctid
    from walhook.recovery
    join walhook.replay_exclusion as exclusion on exclusion.replay_id = recovery.id
    where recovery.webhook_id = $1
    limit $2))

-- name: insert
-- Excludes events from the unfinished replays of a webhook: another job delivers them. $1 webhook,
-- $2 events
insert into walhook.replay_exclusion (replay_id, event_id)
select replay.id, event_id
from walhook.recovery as replay
cross join unnest($2::uuid[]) as event_id
where replay.webhook_id = $1 and replay.kind = 'replay' and replay.finished_at is null
on conflict do nothing

-- name: insert_logged
-- Excludes the events of the next rows of the attempt log. Returns how many rows were read, and the
-- last id. Reads up to the newest row: a delivery may have been attempted at any time before this.
-- $1 replay, $2 webhook, $3 and $4 the ids of events between which the replay reads, $5 the id
-- after which to read, $6 rows to read
with examined as materialized (
    select id, event_id from walhook.attempt where webhook_id = $2 and id > $5 order by id limit $6
),
excluded as (
    insert into walhook.replay_exclusion (replay_id, event_id)
    select distinct $1::uuid, event_id from examined where event_id >= $3 and event_id < $4
    on conflict do nothing
)
select (select count(*) from examined) as examined, (select id from examined order by id desc limit 1) as last

-- name: insert_pending
-- Excludes the events of pending deliveries. The condition names both halves of the attempts for
-- the two partial indexes. $1 replay, $2 webhook, $3 and $4 the ids of events between which the
-- replay reads
insert into walhook.replay_exclusion (replay_id, event_id)
select $1, event_id
from walhook.pending
where webhook_id = $2 and (attempt = 1 or attempt > 1) and event_id >= $3 and event_id < $4
on conflict do nothing

-- name: find
-- Returns those of the events that the replay must skip: another job has delivered them, or their
-- delivery is pending. $1 replay, $2 events, $3 the ids of their deliveries
select event_id from walhook.replay_exclusion where replay_id = $1 and event_id = any ($2::uuid[])
union all
select event_id from walhook.pending where id = any ($3::uuid[])

-- name: expire
-- Removes what ended replays have excluded. $1 rows at most
delete from walhook.replay_exclusion
where ctid = any (array(
    select exclusion.ctid
    from walhook.replay_exclusion as exclusion
    where not exists (select from walhook.recovery where id = exclusion.replay_id and finished_at is null)
    limit $1))
