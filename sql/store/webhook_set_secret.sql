-- Replaces a webhook's secret. Sessions that show the old secret stop showing it: only the session that requested the change may show
-- the new one.
-- $1 user, $2 id, $3 secret, $4 key id
with hidden as (
    update walhook.session set reveals = null where user_id = $1 and reveals = $2
)
update walhook.webhook
set secret = $3, secret_key_id = $4, updated_at = now()
where user_id = $1 and id = $2
