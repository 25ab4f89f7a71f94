-- Removes the deliveries of those attempts that were made under the lease that still holds. In order of id, as everybody locks.
-- $1 ids, $2 leases, $3 attempts
delete from walhook.delivery
using (
    select id, lease, attempt, place
    from unnest($1::uuid[], $2::uuid[], $3::smallint[]) with ordinality as made (id, lease, attempt, place)
    order by id
) as held
where delivery.id = held.id and delivery.lease = held.lease and delivery.attempt = held.attempt
returning held.place
