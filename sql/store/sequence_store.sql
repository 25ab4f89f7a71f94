-- Stores the numbers of webhooks' last deliveries. The transaction has locked them.
-- $1 webhooks in ascending order, $2 numbers
update walhook.webhook_sequence
set last = ($2::bigint[])[width_bucket(webhook_id, $1::uuid[])]
where webhook_id = any ($1::uuid[])
