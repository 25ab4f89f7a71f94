-- The webhooks of these users. $1 user ids
select id, user_id, events, active
from walhook.webhook
where user_id = any($1::text[])
