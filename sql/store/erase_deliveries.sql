-- Locks the deliveries in order of id, like every transaction. It waits for an attempt that is being recorded; one that is recorded later
-- finds no delivery. Arrays, because a join's plan could read all pending deliveries. Returns the deliveries that it found: none of them
-- is pending afterwards, but some may have ended or been cancelled while this waited for them.
-- $1 webhook, $2 rows at most
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
),
gone as (
    delete from walhook.delivery where id = any (array(select id from held))
)
select id from picked
