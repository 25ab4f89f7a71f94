-- Reads the next rows of a webhook's attempt log, and returns the deliveries whose last outcome is one of those in $8. Any outcome
-- but `failed` ends its round, and is the last outcome if no later round was started. `failed` is the last outcome while the retry is
-- pending. A delivery that was cancelled during an attempt which then succeeded is left out: it was delivered.
-- $1 webhook, $2 and $3 the ids between which to read, $4 since, $5 until, $6 rows to read, $7 whether to return the deliveries or
-- only to count them, $8 outcomes, $9 milliseconds by which the id of an attempt may differ from that of the cancellation
with examined as materialized (
    select id, delivery_id, event_id, round, attempt, outcome, test, started_at, sequence
    from walhook.attempt
    where webhook_id = $1 and id > $2 and id < $3
    order by id
    limit $6
),
matching as materialized (
    select delivery_id, event_id, round, attempt, outcome, sequence,
        (extract(epoch from started_at) * 1000)::bigint as millis
    from examined
    where outcome = any ($8::text[]) and not test and started_at >= $4 and started_at < $5
),
-- One index lookup per row: scalar subqueries are never turned into joins over the daily partitions.
found as (
    select distinct on (delivery_id) delivery_id, event_id, round, sequence
    from matching
    where round = coalesce(
            (select last.round from walhook.delivery_round as last where last.delivery_id = matching.delivery_id), 1)
        and (outcome <> 'failed' or (
            select pending.round = matching.round and pending.attempt = matching.attempt + 1
            from walhook.delivery as pending where pending.id = matching.delivery_id))
        and (outcome <> 'cancelled' or (
            select true from walhook.attempt as success
            where success.event_id = matching.event_id and success.webhook_id = $1
                and success.delivery_id = matching.delivery_id and success.round = matching.round
                and success.outcome = 'delivered' and not success.test
                -- For the partitions to read. An id begins with milliseconds.
                and success.id > rpad(lpad(to_hex(matching.millis - $9::bigint), 12, '0'), 32, '0')::uuid
                and success.id < rpad(lpad(to_hex(matching.millis + $9::bigint), 12, '0'), 32, '0')::uuid
            limit 1
        ) is null)
        and (select true from walhook.event where event.id = matching.event_id)
)
select (select count(*) from examined) as examined,
    (select id from examined order by id desc limit 1) as last,
    count(*) as found,
    coalesce(array_agg(delivery_id order by delivery_id) filter (where $7::boolean), '{}') as deliveries,
    coalesce(array_agg(event_id order by delivery_id) filter (where $7::boolean), '{}') as events,
    coalesce(array_agg(round order by delivery_id) filter (where $7::boolean), '{}') as rounds,
    coalesce(array_agg(sequence order by delivery_id) filter (where $7::boolean), '{}') as sequences
from found
