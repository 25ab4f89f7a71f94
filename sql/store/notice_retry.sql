-- $1 id, $2 lease, $3 the wait in seconds, $4 the error
update walhook.notice
set due_at = now() + make_interval(secs => $3), lease = null, tries = tries + 1, last_error = $4
where id = $1 and lease = $2 and ended_at is null
