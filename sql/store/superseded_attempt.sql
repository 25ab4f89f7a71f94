-- name: note
-- Notes the attempts in flight of deliveries that are about to begin another round. Locks the
-- deliveries in order of id. $1 ids of the deliveries
with held as materialized (
    select id, lease from walhook.delivery where id = any ($1::uuid[]) order by id for update
)
insert into walhook.superseded_attempt (delivery_id, lease)
select id, lease from held where lease is not null
on conflict do nothing

-- name: remove
-- Removes notes of attempts whose lease has long expired: their outcome can no longer be reported.
delete from walhook.superseded_attempt where noted_at < now() - interval '1 day'

-- name: take
-- Returns the attempts that were superseded while they were in flight, each only once.
-- $1 deliveries, $2 leases
delete from walhook.superseded_attempt
where delivery_id = any ($1::uuid[])
  and (delivery_id, lease) in (select * from unnest($1::uuid[], $2::uuid[]))
returning delivery_id, lease
