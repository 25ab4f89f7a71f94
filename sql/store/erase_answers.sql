-- $1 user, $2 rows at most
delete from walhook.idempotency where id in (select id from walhook.idempotency where user_id = $1 limit $2)
