-- Leases the notice that has been due longest.
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
returning id, kind, at, failing_since, webhook_id, user_id, name, url, reason, failures, threshold, lease, tries, last_error
