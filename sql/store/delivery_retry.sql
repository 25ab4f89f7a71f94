-- $1 ids, $2 numbers of the next attempts, $3 waits in seconds
update walhook.delivery set attempt = next.attempt, due_at = now() + make_interval(secs => next.wait), lease = null
from unnest($1::uuid[], $2::smallint[], $3::double precision[]) as next (id, attempt, wait)
where delivery.id = next.id
