-- $1 ids in ascending order, $2 numbers of the next attempts, $3 waits in seconds
update walhook.delivery
set attempt = ($2::smallint[])[width_bucket(id, $1::uuid[])],
    due_at = now() + make_interval(secs => ($3::double precision[])[width_bucket(id, $1::uuid[])]),
    lease = null
where id = any ($1::uuid[])
