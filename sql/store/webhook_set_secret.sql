-- $1 user, $2 id, $3 secret, $4 key id
update walhook.webhook
set secret = $3, secret_key_id = $4, updated_at = now()
where user_id = $1 and id = $2
