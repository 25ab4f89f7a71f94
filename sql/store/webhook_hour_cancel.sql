-- $1 webhook, $2 the number of cancelled deliveries
insert into walhook.webhook_hour (webhook_id, hour, cancelled)
values ($1, date_trunc('hour', clock_timestamp(), 'UTC'), $2)
on conflict (webhook_id, hour) do update set cancelled = webhook_hour.cancelled + excluded.cancelled
