-- name: erase
-- $1 webhook, $2 rows at most
delete from walhook.missed_event
where webhook_id = $1
    and event_id = any (array(select event_id from walhook.missed_event where webhook_id = $1 order by event_id limit $2))

-- name: delete
-- Removes missed events, and returns those that no concurrent recovery removed first.
-- $1 webhook, $2 events
delete from walhook.missed_event where webhook_id = $1 and event_id = any ($2::uuid[]) returning event_id

-- name: insert
-- $1 webhooks, $2 events
insert into walhook.missed_event (webhook_id, event_id)
select * from unnest($1::uuid[], $2::uuid[])

-- name: scan
-- Reads the next events that a webhook missed, and returns those that it is subscribed to now. $1
-- webhook, $2 and $3 the ids between which to read, $4 since, $5 until, $6 rows to read, $7 whether
-- to return the events or only to count them
with examined as materialized (
    select event_id
    from walhook.missed_event
    where webhook_id = $1 and event_id > $2 and event_id < $3
    order by event_id
    limit $6
),
found as (
    select event_id
    from examined
    where (
        select event.occurred_at >= $4 and event.occurred_at < $5
            and event.kind = any ((select events from walhook.webhook where id = $1)::text[])
        from walhook.event
        where event.id = examined.event_id
    )
)
select (select count(*) from examined) as examined,
    (select event_id from examined order by event_id desc limit 1) as last,
    count(*) as found,
    '{}'::uuid[] as deliveries,
    coalesce(array_agg(event_id) filter (where $7::boolean), '{}') as events,
    '{}'::smallint[] as rounds,
    '{}'::bigint[] as sequences
from found
