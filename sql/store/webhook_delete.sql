-- $1 user, $2 id
delete from walhook.webhook
where user_id = $1 and id = $2
