-- Returns the stored events in the order of their commits. Those of builds that did not number events come first.
-- With the release of each event that has one. $1 events
select event.id, case when event.release ~ '^[0-9]{1,18}$' then event.release::bigint end as release
from unnest($1::uuid[]) as wanted (id)
-- One lookup by id for each, never a join over the daily partitions.
cross join lateral (
    select id, sequence, data ->> 'release_id' as release from walhook.event where event.id = wanted.id offset 0
) as event
order by event.sequence nulls first, event.id
