-- Removes the deliveries of those attempts that were made under the current lease, and returns the attempts' positions, which are found as
-- in delivery_fence.sql.
-- $1 ids in ascending order, $2 leases, $3 attempts
delete from walhook.delivery
where id = any ($1::uuid[])
  and lease = ($2::uuid[])[width_bucket(id, $1::uuid[])]
  and attempt = ($3::smallint[])[width_bucket(id, $1::uuid[])]
returning width_bucket(id, $1::uuid[])
