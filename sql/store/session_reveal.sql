-- $1 hash, $2 webhook, or null for none, $3 the duration in seconds
update walhook.session set reveals = $2, reveals_until = now() + make_interval(secs => $3) where hash = $1
