-- Returns which of these users have events after a number, the highest number that was read, and how many events were read.
-- $1 the number after which to start, $2 events to read at most, $3 users
with examined as materialized (
    select user_id, sequence from walhook.event where sequence > $1 order by sequence limit $2
)
select array(select distinct user_id from examined where user_id = any ($3::text[])) as users,
    (select max(sequence) from examined) as last, (select count(*) from examined) as examined
