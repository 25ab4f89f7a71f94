-- Stores deliveries with an order key, and returns those that are leased to this process. A delivery is parked if an earlier one of its key
-- is pending. The last one of each key is locked, and this statement began after that: an earlier delivery that it does not see has
-- ended, and one that it sees ends after the commit and makes the next one due.
-- $1 ids, $2 webhooks, $3 events, $4 to lease or not, $5 numbers, $6 keys, $7 the first of its key in this statement or not, $8 lease,
-- $9 its length in seconds
with fresh as (
    select id, webhook_id, event_id, leased, sequence, order_key,
        -- A scalar subquery is one index lookup per row, whatever number of rows the planner expects.
        not is_first or (
            select true from walhook.delivery as earlier
            where earlier.webhook_id = given.webhook_id and earlier.order_key = given.order_key
            limit 1
        ) is true as is_parked
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::boolean[], $5::bigint[], $6::bigint[], $7::boolean[])
        as given (id, webhook_id, event_id, leased, sequence, order_key, is_first)
),
stored as (
    insert into walhook.delivery (id, webhook_id, event_id, due_at, lease, sequence, order_key)
    select id, webhook_id, event_id,
        case when is_parked then 'infinity' when leased then now() + make_interval(secs => $9) else now() end,
        case when leased and not is_parked then $8::uuid end,
        sequence, order_key
    from fresh
    returning id, lease
)
select id from stored where lease is not null
