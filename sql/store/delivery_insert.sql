-- Stores deliveries. Those with true in $4 are leased to this process; the others are due at once and claimed by any replica.
-- $1 ids, $2 webhooks, $3 events, $4 leased or not, $5 lease, $6 its length in seconds
insert into walhook.delivery (id, webhook_id, event_id, due_at, lease)
select id, webhook_id, event_id,
    case when leased then now() + make_interval(secs => $6) else now() end,
    case when leased then $5::uuid end
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::boolean[]) as fresh (id, webhook_id, event_id, leased)
