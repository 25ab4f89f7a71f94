-- $1 user, $2 webhook, $3 the attempt. Its event may have expired before it.
select attempt.id, attempt.webhook_id, attempt.delivery_id, attempt.event_kind, attempt.round, attempt.attempt, attempt.test,
       attempt.started_at, attempt.duration_ms, attempt.outcome, attempt.response_status,
       attempt.error_kind, attempt.error_message,
       attempt.event_id, attempt.sequence, attempt.url, attempt.signature, attempt.standard_signature, attempt.more_signatures,
       attempt.response_body,
       coalesce(event.repaired, false) as repaired, event.occurred_at, event.data::text as data,
       -- The custom headers of the request, if they have not changed since.
       coalesce((select header_names from walhook.webhook where id = $2 and headers_changed_at <= attempt.started_at), '{}')
           as custom_headers
from walhook.attempt
-- A lateral join, so that the event is read by its index: for a plain join, the planner may scan small partitions.
left join lateral (
    select event.repaired, event.occurred_at, event.data from walhook.event where event.id = attempt.event_id limit 1
) event on true
where attempt.webhook_id = $2
  and exists (select from walhook.webhook where user_id = $1 and id = $2)
  and attempt.id = $3
