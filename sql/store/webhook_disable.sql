-- Disables a webhook and inserts a notice for its owner, who is returned.
-- $1 webhook, $2 the failure, described, $3 its kind in the log or `gone`, $4 the notice's id, $5 failures, $6 the threshold,
-- $7 the reason that the webhook shows
with disabled as (
    update walhook.webhook
    set active = false,
        disabled_at = now(),
        disabled_reason = $7::text,
        updated_at = now()
    where id = $1::uuid and active
    returning id, user_id, name, url, failing_since
)
insert into walhook.notice (id, kind, webhook_id, user_id, name, url, reason, error_kind, failures, threshold, failing_since)
select $4::uuid, 'disabled', id, user_id, name, url, $2::text, $3::text, $5::bigint, $6::bigint, failing_since
from disabled
returning user_id
