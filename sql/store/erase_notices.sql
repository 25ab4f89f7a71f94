-- $1 user, $2 rows at most
delete from walhook.notice where id in (select id from walhook.notice where user_id = $1 limit $2)
