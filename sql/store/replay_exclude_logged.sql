-- Excludes the events of the next rows of the attempt log. Returns how many rows were read, and the last id. Reads up to the newest row:
-- a delivery may have been attempted at any time before this.
-- $1 replay, $2 webhook, $3 and $4 the ids of events between which the replay reads, $5 the id after which to read, $6 rows to read
with examined as materialized (
    select id, event_id from walhook.attempt where webhook_id = $2 and id > $5 order by id limit $6
),
excluded as (
    insert into walhook.replay_exclusion (replay_id, event_id)
    select distinct $1::uuid, event_id from examined where event_id >= $3 and event_id < $4
    on conflict do nothing
)
select (select count(*) from examined) as examined, (select id from examined order by id desc limit 1) as last
