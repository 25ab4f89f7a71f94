-- name: erase
-- $1 webhook, $2 rows at most
delete from walhook.webhook_hour
where webhook_id = $1
    and hour = any (array(select hour from walhook.webhook_hour where webhook_id = $1 order by hour limit $2))

-- name: add
-- Adds to the hours' counts, in order of webhook and hour, so that concurrent transactions lock
-- rows in the same order. $1 webhooks, $2 times in the hours, $3 delivered, $4 failed, $5
-- permanently failed, $6 cancelled, $7 durations: $8 buckets for each hour, concatenated
insert into walhook.webhook_hour (webhook_id, hour, delivered, failed, permanently_failed, cancelled, durations)
select webhook, date_trunc('hour', at, 'UTC'), delivered, failed, permanently_failed, cancelled,
    ($7::integer[])[(position - 1) * $8::bigint + 1 : position * $8]
from unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]) with ordinality
    as counted (webhook, at, delivered, failed, permanently_failed, cancelled, position)
order by position
on conflict (webhook_id, hour) do update
set delivered = webhook_hour.delivered + excluded.delivered,
    failed = webhook_hour.failed + excluded.failed,
    permanently_failed = webhook_hour.permanently_failed + excluded.permanently_failed,
    cancelled = webhook_hour.cancelled + excluded.cancelled,
    durations = case
        when webhook_hour.durations is null then excluded.durations
        else array(
            select coalesce(before, 0) + coalesce(added, 0)
            from unnest(webhook_hour.durations, excluded.durations) with ordinality as bucket (before, added, position)
            order by position
        )
    end

-- name: cancel
-- $1 webhook, $2 the number of cancelled deliveries
insert into walhook.webhook_hour (webhook_id, hour, cancelled)
values ($1, date_trunc('hour', clock_timestamp(), 'UTC'), $2)
on conflict (webhook_id, hour) do update set cancelled = webhook_hour.cancelled + excluded.cancelled

-- name: expire
-- $1 the oldest hour to keep
delete from walhook.webhook_hour where hour < $1

-- name: list
-- $1 user, $2 webhook, $3 from this hour on. No row if the user has no such webhook; one row of
-- nulls if it has no hours.
select hour, delivered, failed, permanently_failed, cancelled, durations
from walhook.webhook
left join walhook.webhook_hour on webhook_hour.webhook_id = webhook.id and hour >= $3
where webhook.user_id = $1 and webhook.id = $2
order by hour

-- name: user
-- $1 user, $2 from this hour on
select webhook_hour.webhook_id, webhook_hour.hour, webhook_hour.delivered,
       webhook_hour.failed + webhook_hour.permanently_failed as failed
from walhook.webhook
join walhook.webhook_hour on webhook_hour.webhook_id = webhook.id
where webhook.user_id = $1 and webhook_hour.hour >= $2
