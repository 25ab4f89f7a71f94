-- name: erase
-- $1 user, $2 rows at most
delete from walhook.notice where id in (select id from walhook.notice where user_id = $1 limit $2)

-- name: claim
-- Leases the notice that has been due longest. It holds while the webhook is as the notice says:
-- disabled since then, or failing ever since or again.
-- $1 lease, $2 seconds until it ends
update walhook.notice
set lease = $1::uuid, due_at = now() + make_interval(secs => $2)
where id = (
    select id from walhook.notice
    where ended_at is null and due_at <= now()
    order by due_at
    limit 1
    for update skip locked
)
returning id, kind, at, failing_since, webhook_id, user_id, name, url, reason, failures, threshold, lease, tries, last_error,
    exists (
        select from walhook.webhook
        where webhook.id = notice.webhook_id
            and case notice.kind
                when 'disabled' then webhook.disabled_at = notice.at
                else webhook.failing_since is not null
            end
    ) as holds

-- name: count
-- $1 where counting ends
select count(*) from (select from walhook.notice where ended_at is null limit $1) as pending

-- name: end
-- Ends a notice regardless of its lease: a notice that was sent must not be sent again.
-- $1 id, $2 outcome
update walhook.notice set ended_at = now(), outcome = $2, lease = null
where id = $1 and ended_at is null

-- name: expire
-- Removes old notices, and returns how many were never sent. A warning that could not be sent for a
-- day is outdated: if the webhook keeps failing, there is a newer one. $1 how many days the others
-- are kept
with gone as (
    delete from walhook.notice
    where at < now() - make_interval(days => $1::int)
       or at < now() - interval '1 day' and kind = 'warning' and ended_at is null
    returning ended_at
)
select count(*) from gone where ended_at is null

-- name: extend
-- $1 id, $2 lease, $3 seconds from now until it ends
update walhook.notice set due_at = now() + make_interval(secs => $3)
where id = $1 and lease = $2 and ended_at is null

-- name: last_disabled
-- When the failures began that disabled a webhook last. $1 webhook
select coalesce(failing_since, at) as failing_since
from walhook.notice
where webhook_id = $1 and kind = 'disabled'
order by at desc
limit 1

-- name: mark_unsendable
-- Returns notices that cannot be sent, each only once. They stay due.
-- $1 why they cannot be sent, $2 how many at most
update walhook.notice set last_error = $1
where id = any (array(
    select id from walhook.notice
    where ended_at is null and last_error is null
    order by due_at
    limit $2
    for update skip locked
))
returning id, kind, at, failing_since, webhook_id, user_id, name, url, reason, failures, threshold

-- name: retry
-- $1 id, $2 lease, $3 the wait in seconds, $4 the error
update walhook.notice
set due_at = now() + make_interval(secs => $3), lease = null, tries = tries + 1, last_error = $4
where id = $1 and lease = $2 and ended_at is null
