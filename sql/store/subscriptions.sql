-- The webhooks of these users, with everything that a delivery needs. $1 user ids
select id, user_id, events, active, url, secret, secret_key_id,
       private_key, private_key_key_id,
       previous_secret, previous_secret_key_id, previous_private_key, previous_private_key_key_id, previous_expires_at
from walhook.webhook
where user_id = any($1::text[])
