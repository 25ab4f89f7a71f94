-- The active webhooks of these users. $1 user ids
select id, user_id, events
from walhook.webhook
where active and user_id = any($1::text[])
