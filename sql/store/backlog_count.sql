-- Counts pending deliveries of one class in the order of the class's index, from a position on: how many, for how many seconds the oldest
-- of them has been due, the last one's position, and how many have exactly that position. The position is null if there is none.
-- For retries, `attempt = 1` is replaced by `attempt > 1`. It is not a parameter: each class has a partial index of its own, which
-- generic plans use only for a literal condition.
-- $1 webhook and $2 due time from which to start, $3 deliveries with exactly these to skip, $4 deliveries to count at most
with counted as materialized (
    select webhook_id, due_at from walhook.delivery
    where attempt = 1 and (webhook_id, due_at) >= ($1::uuid, $2::text::timestamptz)
    order by webhook_id, due_at
    offset $3 limit $4
),
final as (select webhook_id, due_at from counted order by webhook_id desc, due_at desc limit 1)
select count(*) as deliveries,
    -- Parked deliveries are due at infinity.
    coalesce(extract(epoch from now() - min(due_at) filter (where due_at < now())), 0)::float8 as oldest_due,
    (select webhook_id from final) as last_webhook,
    (select due_at::text from final) as last_due_at,
    count(*) filter (where (webhook_id, due_at) = (select webhook_id, due_at from final)) as same_as_last
from counted
