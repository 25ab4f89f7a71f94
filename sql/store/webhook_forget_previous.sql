-- Removes the keys whose overlap has ended. Skips webhooks that are locked: the next run removes theirs.
update walhook.webhook
set previous_secret = null,
    previous_secret_key_id = null,
    previous_private_key = null,
    previous_private_key_key_id = null,
    previous_public_key = null,
    previous_expires_at = null
where id = any (array(
    select id from walhook.webhook where previous_expires_at <= now() order by id for update skip locked
))
