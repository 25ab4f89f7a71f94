-- Locks and returns the numbers of webhooks' last deliveries, in order of id. Inserts those that do not exist.
-- $1 webhooks in ascending order
insert into walhook.webhook_sequence as sequence (webhook_id, last)
select webhook_id, 0 from unnest($1::uuid[]) with ordinality as wanted (webhook_id, position) order by position
on conflict (webhook_id) do update set last = sequence.last
returning webhook_id, last
