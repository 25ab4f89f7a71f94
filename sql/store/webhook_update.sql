-- $1 user, $2 id, $3 name, $4 url, $5 events, $6 active, $7 whether to reset the failures of an automatic disablement,
-- $8 description, $9 metadata, $10 filter, $11 whether to replace the custom headers: $12 names, $13 the encrypted headers or null,
-- $14 their key id, $15 ordering
update walhook.webhook
set name = $3,
    url = $4,
    events = $5,
    active = $6,
    ordering = $15,
    description = $8,
    metadata = $9::text::jsonb,
    filter = $10::text::jsonb,
    header_names = case when $11::bool then $12 else header_names end,
    headers = case when $11 then $13 else headers end,
    headers_key_id = case when $11 then $14 else headers_key_id end,
    headers_changed_at = case when $11 then clock_timestamp() else headers_changed_at end,
    failure_count = case when $7::bool then 0 else failure_count end,
    consecutive_failures = case when $7 then 0 else consecutive_failures end,
    failing_since = case when $7 then null else failing_since end,
    disabled_at = case when $7 then null else disabled_at end,
    disabled_reason = case when $7 then null else disabled_reason end,
    updated_at = now()
where user_id = $1 and id = $2
returning id, name, url, events, active, ordering, success_count, failure_count, consecutive_failures, last_triggered_at,
          disabled_at, disabled_reason, created_at, updated_at,
          description, metadata::text, filter::text, header_names, headers_changed_at
