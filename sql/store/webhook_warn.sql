-- Inserts a warning for a webhook's owner.
-- $1 webhook, $2 the failure, described, $3 its kind in the log, $4 the notice's id, $5 failures, $6 the threshold
with warned as (
    update walhook.webhook set warned_at = now() where id = $1::uuid
    returning id, user_id, name, url
)
insert into walhook.notice (id, kind, webhook_id, user_id, name, url, reason, error_kind, failures, threshold)
select $4::uuid, 'warning', id, user_id, name, url, $2::text, $3::text, $5::bigint, $6::bigint
from warned
returning user_id
