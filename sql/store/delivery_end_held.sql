-- Removes the deliveries of those attempts that were made under the lease that still holds, found as delivery_fence.sql does:
-- gives the attempts' places.
-- $1 ids in ascending order, $2 leases, $3 attempts
delete from walhook.delivery
where id = any ($1::uuid[])
  and lease = ($2::uuid[])[width_bucket(id, $1::uuid[])]
  and attempt = ($3::smallint[])[width_bucket(id, $1::uuid[])]
returning width_bucket(id, $1::uuid[])
