-- Returns which of these users have events between two numbers, the highest number that was read, and how many events were read.
-- $1 the number after which to start, $2 the highest number, $3 events to read at most, $4 users
with examined as materialized (
    select user_id, sequence from walhook.event where sequence > $1 and sequence <= $2 order by sequence limit $3
)
select array(select distinct user_id from examined where user_id = any ($4::text[])) as users,
    (select max(sequence) from examined) as last, (select count(*) from examined) as examined
