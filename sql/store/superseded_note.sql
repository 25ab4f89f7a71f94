-- Notes the attempts that are under way of deliveries that are about to begin another round. The deliveries stay locked, in order of id.
-- $1 ids of the deliveries
with held as materialized (
    select id, lease from walhook.delivery where id = any ($1::uuid[]) order by id for update
)
insert into walhook.superseded_attempt (delivery_id, lease)
select id, lease from held where lease is not null
on conflict do nothing
