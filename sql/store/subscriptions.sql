-- The webhooks of these users, with all that it takes to deliver to them. $1 user ids
select id, user_id, events, active, url, secret, secret_key_id
from walhook.webhook
where user_id = any($1::text[])
