-- $1 webhook, $2 rows at most
delete from walhook.webhook_sequence
where webhook_id = any (array(select webhook_id from walhook.webhook_sequence where webhook_id = $1 limit $2))
