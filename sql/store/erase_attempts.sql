-- $1 webhook, $2 rows at most
with picked as materialized (
    select id, delivery_id from walhook.attempt where webhook_id = $1 order by id limit $2
),
rounds as (
    delete from walhook.delivery_round where delivery_id in (select delivery_id from picked)
)
delete from walhook.attempt where webhook_id = $1 and id = any (array(select id from picked))
