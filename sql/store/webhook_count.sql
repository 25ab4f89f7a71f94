-- Adds to the webhooks' counters and returns their new values. The rows are locked in order of id, so that two replicas that count for
-- the same webhooks cannot deadlock. Runs of failures are timed by this clock alone: those of replicas may differ.
-- $1 webhooks, $2 successes, $3 failures, $4 failures after the last success, $5 last triggered
with counted as materialized (
    select webhook.id, successes, failures, recent, triggered
    from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[])
        as tally (id, successes, failures, recent, triggered)
    join walhook.webhook on webhook.id = tally.id
    order by webhook.id
    for no key update of webhook
)
update walhook.webhook
set success_count = success_count + successes,
    failure_count = failure_count + failures,
    consecutive_failures = case when successes > 0 then recent else consecutive_failures + recent end,
    failing_since = case
        when recent = 0 then case when successes = 0 then failing_since end
        when successes > 0 then now()
        else coalesce(failing_since, now())
    end,
    last_triggered_at = greatest(last_triggered_at, triggered)
from counted
where webhook.id = counted.id
returning webhook.id, active, failure_count, consecutive_failures, failing_since, warned_at, now() as counted_at
