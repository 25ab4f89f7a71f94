-- $1 webhooks
select id, user_id, url, active, secret, secret_key_id, headers, headers_key_id, activation,
       private_key, private_key_key_id,
       previous_secret, previous_secret_key_id, previous_private_key, previous_private_key_key_id, previous_expires_at
from walhook.webhook
where id = any ($1::uuid[])
