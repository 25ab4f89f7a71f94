-- $1 user, $2 id, $3 secret, $4 key id. Sessions that may show the old secret must not show the new one.
with concealed as (
    update walhook.session set reveals = null where user_id = $1 and reveals = $2
)
update walhook.webhook
set secret = $3, secret_key_id = $4, updated_at = now()
where user_id = $1 and id = $2
