-- Notes the attempts in flight of deliveries that are about to begin another round. Locks the deliveries in order of id.
-- $1 ids of the deliveries
with held as materialized (
    select id, lease from walhook.delivery where id = any ($1::uuid[]) order by id for update
)
insert into walhook.superseded_attempt (delivery_id, lease)
select id, lease from held where lease is not null
on conflict do nothing
