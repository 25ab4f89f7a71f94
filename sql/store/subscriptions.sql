-- The webhooks of these users, with everything that a delivery needs. $1 user ids
select id, user_id, events, active, url, secret, secret_key_id, activation
from walhook.webhook
where user_id = any($1::text[])
