-- $1 user
delete from walhook.webhook where user_id = $1 returning id
