-- $1 user, $2 id, $3 name, $4 url, $5 events, $6 active, $7 secret, $8 key id, $9 the limit of webhooks per user
insert into walhook.webhook (user_id, id, name, url, events, active, secret, secret_key_id)
select $1, $2, $3, $4, $5, $6, $7, $8
where (select count(*) from walhook.webhook where user_id = $1) < $9::bigint
returning id, name, url, events, active, success_count, failure_count, consecutive_failures, last_triggered_at,
          disabled_at, disabled_reason, created_at, updated_at
