-- Locks a webhook and returns it. $1 user, $2 id
select id, name, url, events, active, ordering, success_count, failure_count, consecutive_failures, last_triggered_at,
       disabled_at, disabled_reason, created_at, updated_at,
       description, metadata::text, filter::text, header_names, headers_changed_at,
       signing, public_key, case when previous_expires_at > now() then previous_expires_at end as previous_secret_expires_at
from walhook.webhook
where user_id = $1 and id = $2
for update
