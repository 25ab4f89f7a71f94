-- $1 webhooks
select id, url, active, secret, secret_key_id, headers, headers_key_id
from walhook.webhook
where id = any ($1::uuid[])
