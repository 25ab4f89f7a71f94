-- name: erase
-- $1 webhook, $2 rows at most
delete from walhook.webhook_sequence
where webhook_id = any (array(select webhook_id from walhook.webhook_sequence where webhook_id = $1 limit $2))

-- name: remove_orphans
-- Removes the numbers of webhooks that were deleted: not with the webhook, because storing events
-- locks numbers before deliveries.
delete from walhook.webhook_sequence
where not exists (select from walhook.webhook where webhook.id = webhook_sequence.webhook_id)

-- name: start
-- Locks and returns the numbers of webhooks' last deliveries, in order of id. Inserts those that do
-- not exist. $1 webhooks in ascending order
insert into walhook.webhook_sequence as sequence (webhook_id, last)
select webhook_id, 0 from unnest($1::uuid[]) with ordinality as wanted (webhook_id, position) order by position
on conflict (webhook_id) do update set last = sequence.last
returning webhook_id, last

-- name: store
-- Stores the numbers of webhooks' last deliveries. The transaction has locked them.
-- $1 webhooks in ascending order, $2 numbers
update walhook.webhook_sequence
set last = ($2::bigint[])[width_bucket(webhook_id, $1::uuid[])]
where webhook_id = any ($1::uuid[])
