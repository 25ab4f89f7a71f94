-- $1 users
delete from walhook.user_addon
where user_id = any($1::text[])
