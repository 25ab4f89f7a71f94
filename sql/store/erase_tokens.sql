-- $1 user, $2 rows at most
delete from walhook.api_token where id in (select id from walhook.api_token where user_id = $1 limit $2)
