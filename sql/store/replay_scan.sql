-- Reads the next events of a user in the order of their commits, and returns those to deliver. Always returns at least one row: how
-- many events were read, and the number of the last.
-- $1 user, $2 and $3 the numbers after which and up to which to read, $4 and $5 the ids between which to read: whole days, which choose
-- partitions, $6 events to read, $7 replay, $8 events, $9 labels, $10 since, $11 until, $12 events to return
with examined as materialized (
    select id, sequence, kind, label_id, occurred_at
    from walhook.event
    where user_id = $1 and sequence > $2 and sequence <= $3 and id >= $4 and id < $5
    order by sequence
    limit $6
),
found as materialized (
    select id, sequence, kind, label_id
    from examined
    where kind = any ($8::text[]) and ($9::bigint[] is null or label_id = any ($9)) and occurred_at >= $10 and occurred_at < $11
        -- An index lookup for each event: a scalar subquery is never turned into a join.
        and (select true from walhook.replay_exclusion where replay_id = $7 and event_id = examined.id) is null
    order by sequence
    limit $12
)
select read.examined, read.sequence as last_sequence, null::uuid as last_id, found.id, found.sequence, found.kind, found.label_id,
    (select data::text from walhook.event where event.id = found.id) as data
from (select count(*) as examined, max(sequence) as sequence from examined) as read
left join found on true
order by found.sequence
