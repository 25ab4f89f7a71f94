-- $1 id, $2 lease, $3 seconds from now until it ends
update walhook.notice set due_at = now() + make_interval(secs => $3)
where id = $1 and lease = $2 and ended_at is null
