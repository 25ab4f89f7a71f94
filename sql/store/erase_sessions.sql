-- $1 user, $2 rows at most
delete from walhook.session where hash in (select hash from walhook.session where user_id = $1 limit $2)
