-- Releases leases: the deliveries are due for the next claim.
-- $1 ids in ascending order, $2 leases
update walhook.delivery set lease = null, due_at = now()
where id = any ($1::uuid[]) and lease = ($2::uuid[])[width_bucket(id, $1::uuid[])]
