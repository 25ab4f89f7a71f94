-- Stores deliveries. Those with true in $4 are leased to this process; the others are due at once and claimed by any replica.
-- $1 ids, $2 webhooks, $3 events, $4 leased or not, $5 numbers, $6 lease, $7 its length in seconds
insert into walhook.delivery (id, webhook_id, event_id, due_at, lease, sequence)
select id, webhook_id, event_id,
    case when leased then now() + make_interval(secs => $7) else now() end,
    case when leased then $6::uuid end,
    sequence
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::boolean[], $5::bigint[]) as fresh (id, webhook_id, event_id, leased, sequence)
