-- The next events that a webhook missed, locked; `wanted` are those it subscribes to now.
-- $1 webhook, $2 and $3 the ids between which to look, $4 since, $5 until, $6 rows to look at
with looked as materialized (
    select event_id
    from walhook.missed_event
    where webhook_id = $1 and event_id > $2 and event_id < $3
    order by event_id
    limit $6
    for update
)
select event_id, (
    select event.occurred_at >= $4 and event.occurred_at < $5
        and event.kind = any ((select events from walhook.webhook where id = $1)::text[])
    from walhook.event
    where event.id = looked.event_id
) is true as wanted
from looked
order by event_id
