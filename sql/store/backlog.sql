-- What waits to be delivered: how many first attempts and how many retries, and for how many seconds the oldest of each has
-- been due. Counts end at $1 and ages are read webhook by webhook, so that a pile costs no more than a look.
select
    (select count(*) from (select from walhook.delivery where attempt = 1 limit $1) fresh),
    (select count(*) from (select from walhook.delivery where attempt > 1 limit $1) retry),
    coalesce((
        select extract(epoch from max(now() - oldest.due_at))
        from walhook.webhook,
            lateral (
                select delivery.due_at from walhook.delivery
                where delivery.webhook_id = webhook.id and delivery.attempt = 1
                order by delivery.due_at limit 1
            ) oldest
        where oldest.due_at < now()
    ), 0)::float8,
    coalesce((
        select extract(epoch from max(now() - oldest.due_at))
        from walhook.webhook,
            lateral (
                select delivery.due_at from walhook.delivery
                where delivery.webhook_id = webhook.id and delivery.attempt > 1
                order by delivery.due_at limit 1
            ) oldest
        where oldest.due_at < now()
    ), 0)::float8
