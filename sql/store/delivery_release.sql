-- Gives leases back: whoever claims next has them.
-- $1 ids, $2 leases
update walhook.delivery set lease = null, due_at = now()
from unnest($1::uuid[], $2::uuid[]) as held (id, lease)
where delivery.id = held.id and delivery.lease = held.lease
