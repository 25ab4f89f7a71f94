-- Returns the deliveries of an event: what is pending, and what the attempt log has of it.
-- $1 the user's webhooks, $2 the ids of the event's deliveries to them, $3 the event, $4 the lowest id of an attempt,
-- $5 attempts to read at most
with logged as materialized (
    select id, delivery_id, outcome from walhook.attempt where event_id = $3 and id >= $4 order by id desc limit $5
)
select wanted.id, wanted.webhook_id, ended.attempts, ended.outcome, ended.last_log,
    pending.due_at is not null as is_pending, nullif(pending.due_at, 'infinity') as due_at, pending.lease is not null as leased
from unnest($1::uuid[], $2::uuid[]) as wanted (webhook_id, id)
-- One lookup per webhook, never a join over the daily partitions.
left join lateral (
    select due_at, lease from walhook.delivery where delivery.id = wanted.id offset 0
) as pending on true
cross join lateral (
    select count(*) filter (where outcome <> 'cancelled') as attempts, (array_agg(outcome order by id desc))[1] as outcome,
        (array_agg(id order by id desc))[1] as last_log
    from logged
    where delivery_id = wanted.id
) as ended
where pending.due_at is not null or ended.outcome is not null
order by wanted.webhook_id
