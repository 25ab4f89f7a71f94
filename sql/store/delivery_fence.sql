-- Which of the attempts were made under the lease that still holds, by their places; their rows stay locked. In order of id, as
-- everybody locks. An id's place in the ordered array is searched for, never joined with: a join's plan, made while few
-- deliveries wait, walks through all that wait later.
-- $1 ids in ascending order, $2 leases, $3 attempts
select width_bucket(id, $1::uuid[])
from walhook.delivery
where id = any ($1::uuid[])
  and lease = ($2::uuid[])[width_bucket(id, $1::uuid[])]
  and attempt = ($3::smallint[])[width_bucket(id, $1::uuid[])]
order by id
for update
