-- Replaces a webhook's secret, and its key pair if it has one. The old ones stay valid for the overlap; without one they are removed, as
-- are those of an earlier overlap. Sessions that show the old secret stop showing it: only the session that requested the change may
-- show the new one.
-- $1 user, $2 id, $3 secret, $4 key id, $5 private key, $6 its key id, $7 public key, $8 the overlap in seconds, or 0 for none
with hidden as (
    update walhook.session set reveals = null where user_id = $1 and reveals = $2
)
update walhook.webhook
set secret = $3,
    secret_key_id = $4,
    private_key = case when private_key is not null then $5::bytea end,
    private_key_key_id = case when private_key is not null then $6::text end,
    public_key = case when private_key is not null then $7::bytea end,
    previous_secret = case when $8::float8 > 0 then secret end,
    previous_secret_key_id = case when $8 > 0 then secret_key_id end,
    previous_private_key = case when $8 > 0 then private_key end,
    previous_private_key_key_id = case when $8 > 0 then private_key_key_id end,
    previous_public_key = case when $8 > 0 then public_key end,
    previous_expires_at = case when $8 > 0 then now() + make_interval(secs => $8) end,
    updated_at = now()
where user_id = $1 and id = $2
returning public_key, previous_expires_at
