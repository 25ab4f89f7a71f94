-- $1 webhooks
select id, url, active, secret, secret_key_id, activation from walhook.webhook where id = any ($1::uuid[])
