-- $1 user, $2 id, $3 name, $4 url, $5 events, $6 active, $7 whether to reset the failures of an automatic disablement
update walhook.webhook
set name = $3,
    url = $4,
    events = $5,
    active = $6,
    activation = activation + ($6 and not active)::integer,
    failure_count = case when $7::bool then 0 else failure_count end,
    consecutive_failures = case when $7 then 0 else consecutive_failures end,
    failing_since = case when $7 then null else failing_since end,
    disabled_at = case when $7 then null else disabled_at end,
    disabled_reason = case when $7 then null else disabled_reason end,
    updated_at = now()
where user_id = $1 and id = $2
returning id, name, url, events, active, success_count, failure_count, consecutive_failures, last_triggered_at,
          disabled_at, disabled_reason, created_at, updated_at
