-- $1 webhook, $2 rows at most. Held in order of id, as everybody locks; an answer that is being recorded is waited for, and one
-- that comes later finds no delivery. Arrays, as a join's plan could walk through all that waits.
with picked as materialized (
    select id from walhook.delivery where webhook_id = $1 and (attempt = 1 or attempt > 1) limit $2
),
held as materialized (
    select delivery.id
    from walhook.delivery
    where delivery.id = any (array(select id from picked))
    order by delivery.id
    for update
),
rounds as (
    delete from walhook.delivery_round where delivery_id = any (array(select id from held))
)
delete from walhook.delivery where id = any (array(select id from held))
