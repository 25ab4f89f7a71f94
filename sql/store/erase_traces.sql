-- The ids of a user's deleted webhooks, found by the rows that remain of them. Each distinct id is one index lookup; the event of
-- any one row names the user.
-- $1 user
with recursive logged (webhook_id) as (
    (select webhook_id from walhook.attempt order by webhook_id limit 1)
    union all
    select (select webhook_id from walhook.attempt where webhook_id > logged.webhook_id order by webhook_id limit 1)
    from logged
    where logged.webhook_id is not null
),
missing (webhook_id) as (
    (select webhook_id from walhook.missed_event order by webhook_id limit 1)
    union all
    select (select webhook_id from walhook.missed_event where webhook_id > missing.webhook_id order by webhook_id limit 1)
    from missing
    where missing.webhook_id is not null
)
select subject_id as id from walhook.audit where user_id = $1 and action like 'webhook.%'
union
select webhook_id
from logged
where not exists (select from walhook.webhook where id = logged.webhook_id)
    and $1 = (
        select event.user_id
        from walhook.attempt
        join walhook.event on event.id = attempt.event_id
        where attempt.webhook_id = logged.webhook_id
        limit 1)
union
select webhook_id
from missing
where not exists (select from walhook.webhook where id = missing.webhook_id)
    and $1 = (
        select event.user_id
        from walhook.missed_event
        join walhook.event on event.id = missed_event.event_id
        where missed_event.webhook_id = missing.webhook_id
        limit 1)
