-- $1 user, $2 rows at most
delete from walhook.audit where id in (select id from walhook.audit where user_id = $1 limit $2)
