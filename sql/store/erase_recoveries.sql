-- Waits for a recovery that a replica is running: the deliveries that it starts are pending afterwards.
-- $1 webhook, $2 rows at most
delete from walhook.recovery
where id in (select id from walhook.recovery where webhook_id = $1 limit $2)
