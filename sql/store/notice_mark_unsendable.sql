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
