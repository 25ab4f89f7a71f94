-- Adds to the hours' counts, in order of webhook and hour, so that concurrent transactions lock rows in the same order.
-- $1 webhooks, $2 times in the hours, $3 delivered, $4 failed, $5 permanently failed, $6 cancelled,
-- $7 durations: $8 buckets for each hour, concatenated
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
