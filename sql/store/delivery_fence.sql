-- Which of the attempts were made under the lease that still holds; their rows stay locked. In order of id, as everybody locks.
-- $1 ids, $2 leases, $3 attempts
select held.place
from unnest($1::uuid[], $2::uuid[], $3::smallint[]) with ordinality as held (id, lease, attempt, place)
join walhook.delivery on delivery.id = held.id and delivery.lease = held.lease and delivery.attempt = held.attempt
order by delivery.id
for update of delivery
