-- $1 webhook, $2 the secret as it was encrypted, $3 as it is now, $4 the key it is encrypted with. Not one that was regenerated meanwhile
update walhook.webhook
set secret = $3, secret_key_id = $4
where id = $1 and secret = $2
