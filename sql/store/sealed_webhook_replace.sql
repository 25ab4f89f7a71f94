-- Replaces a webhook's encrypted secret, unless it was regenerated in the meantime.
-- $1 webhook, $2 the old value, $3 the new value, $4 its key
update walhook.webhook
set secret = $3, secret_key_id = $4
where id = $1 and secret = $2
