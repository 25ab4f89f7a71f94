-- Returns those of the events that the replay must skip: another job has delivered them, or their delivery is pending.
-- $1 replay, $2 events, $3 the ids of their deliveries
select event_id from walhook.replay_exclusion where replay_id = $1 and event_id = any ($2::uuid[])
union all
select event_id from walhook.delivery where id = any ($3::uuid[])
