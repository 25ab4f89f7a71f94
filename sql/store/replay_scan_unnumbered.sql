-- Reads the next events in order of id, and returns those to deliver that have no number: builds before version 15 of the schema stored
-- them. Tests have no ordinal. Always returns at least one row: how many events were read, and the last id.
-- $1 user, $2 and $3 the ids between which to read, $4 events to read, $5 replay, $6 events, $7 labels, $8 since, $9 until,
-- $10 events to return
with examined as materialized (
    select id, user_id, sequence, ordinal, kind, label_id, occurred_at
    from walhook.event
    where id > $2 and id < $3
    order by id
    limit $4
),
found as materialized (
    select id, kind, label_id
    from examined
    where user_id = $1 and sequence is null and ordinal is not null
        and kind = any ($6::text[]) and ($7::bigint[] is null or label_id = any ($7)) and occurred_at >= $8 and occurred_at < $9
        -- An index lookup for each event: a scalar subquery is never turned into a join.
        and (select true from walhook.replay_exclusion where replay_id = $5 and event_id = examined.id) is null
    order by id
    limit $10
)
select read.examined, null::bigint as last_sequence, read.last_id, found.id, null::bigint as sequence, found.kind, found.label_id,
    (select data::text from walhook.event where event.id = found.id) as data
from (select (select count(*) from examined) as examined, (select id from examined order by id desc limit 1) as last_id) as read
left join found on true
order by found.id
