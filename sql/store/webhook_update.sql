-- $1 user, $2 id, $3 name, $4 url, $5 events, $6 active, $7 whether to reset the failures of an automatic disablement,
-- $8 signing; for a webhook without a key pair that gets one: $9 private key, $10 its key id, $11 public key
update walhook.webhook
set name = $3,
    url = $4,
    events = $5,
    active = $6,
    failure_count = case when $7::bool then 0 else failure_count end,
    consecutive_failures = case when $7 then 0 else consecutive_failures end,
    failing_since = case when $7 then null else failing_since end,
    disabled_at = case when $7 then null else disabled_at end,
    disabled_reason = case when $7 then null else disabled_reason end,
    signing = $8,
    private_key = case when $8 <> 'hmac' then coalesce(private_key, $9::bytea) end,
    private_key_key_id = case when $8 <> 'hmac' then coalesce(private_key_key_id, $10::text) end,
    public_key = case when $8 <> 'hmac' then coalesce(public_key, $11::bytea) end,
    previous_private_key = case when $8 <> 'hmac' then previous_private_key end,
    previous_private_key_key_id = case when $8 <> 'hmac' then previous_private_key_key_id end,
    previous_public_key = case when $8 <> 'hmac' then previous_public_key end,
    updated_at = now()
where user_id = $1 and id = $2
returning id, name, url, events, active, success_count, failure_count, consecutive_failures, last_triggered_at,
          disabled_at, disabled_reason, created_at, updated_at,
          signing, public_key, case when previous_expires_at > now() then previous_expires_at end as previous_secret_expires_at
