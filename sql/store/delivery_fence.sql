-- Locks the deliveries of those attempts that were made under the current lease, and returns the attempts' positions. In order of id,
-- like every transaction. A position in the sorted array is found by binary search, not by a join: a join's plan, made while
-- few deliveries are pending, would read all of them later.
-- $1 ids in ascending order, $2 leases, $3 attempts
select width_bucket(id, $1::uuid[])
from walhook.delivery
where id = any ($1::uuid[])
  and lease = ($2::uuid[])[width_bucket(id, $1::uuid[])]
  and attempt = ($3::smallint[])[width_bucket(id, $1::uuid[])]
order by id
for update
