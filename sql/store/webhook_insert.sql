-- $1 user, $2 id, $3 name, $4 url, $5 events, $6 active, $7 secret, $8 key id, $9 the most webhooks of the user,
-- $10 signing, $11 private key, or null, $12 its key id, $13 public key
insert into walhook.webhook (user_id, id, name, url, events, active, secret, secret_key_id, signing, private_key, private_key_key_id, public_key)
select $1, $2, $3, $4, $5, $6, $7, $8, $10, $11, $12, $13
where (select count(*) from walhook.webhook where user_id = $1) < $9::bigint
returning id, name, url, events, active, success_count, failure_count, consecutive_failures, last_triggered_at,
          disabled_at, disabled_reason, created_at, updated_at,
          signing, public_key, case when previous_expires_at > now() then previous_expires_at end as previous_secret_expires_at
