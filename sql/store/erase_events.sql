-- Reads the next events in order of id, and removes the user's. Returns how many were read, the last id, and how many were removed.
-- $1 user, $2 the id after which to start, $3 rows to read
with examined as materialized (
    select id, user_id from walhook.event where id > $2 order by id limit $3
),
gone as (
    delete from walhook.event where id = any (array(select id from examined where user_id = $1)) returning id
)
select (select count(*) from examined) as examined, (select id from examined order by id desc limit 1) as last,
    (select count(*) from gone) as gone
