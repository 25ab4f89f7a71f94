-- Pending first attempts and retries: their numbers, and for how many seconds the oldest has been due. Counting ends at $1, and ages are
-- read per webhook by index, so that a long backlog costs no more than a short one.
select
    (select count(*) from (select from walhook.delivery where attempt = 1 limit $1) fresh) as fresh,
    (select count(*) from (select from walhook.delivery where attempt > 1 limit $1) retry) as retry,
    coalesce((
        select extract(epoch from max(now() - oldest.due_at))
        from walhook.webhook,
            lateral (
                select delivery.due_at from walhook.delivery
                where delivery.webhook_id = webhook.id and delivery.attempt = 1
                order by delivery.due_at limit 1
            ) oldest
        where oldest.due_at < now()
    ), 0)::float8 as oldest_fresh,
    coalesce((
        select extract(epoch from max(now() - oldest.due_at))
        from walhook.webhook,
            lateral (
                select delivery.due_at from walhook.delivery
                where delivery.webhook_id = webhook.id and delivery.attempt > 1
                order by delivery.due_at limit 1
            ) oldest
        where oldest.due_at < now()
    ), 0)::float8 as oldest_retry
