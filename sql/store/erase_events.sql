-- Of the next events in the order of their ids, removes the user's. Always one row: how many were looked at, where the last
-- stands, how many went.
-- $1 user, $2 behind this id, $3 rows to look at
with looked as materialized (
    select id, user_id from walhook.event where id > $2 order by id limit $3
),
gone as (
    delete from walhook.event where id = any (array(select id from looked where user_id = $1)) returning id
)
select (select count(*) from looked) as looked, (select id from looked order by id desc limit 1) as last,
    (select count(*) from gone) as gone
