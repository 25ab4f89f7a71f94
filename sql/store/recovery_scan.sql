-- The next rows of a webhook's log, and of them the deliveries whose last outcome is one of those asked for. A result ends its
-- round; it is the last if no other round was begun. A failure is the last while the retry behind it is pending.
-- Always gives at least one row: how many were looked at, and where the last stands.
-- $1 webhook, $2 and $3 the ids between which to look, $4 since, $5 until, $6 outcomes, $7 rows to look at
with looked as materialized (
    select id, delivery_id, event_id, round, attempt, outcome, test, started_at
    from walhook.attempt
    where webhook_id = $1 and id > $2 and id < $3
    order by id
    limit $7
),
asked as materialized (
    select delivery_id, event_id, round, attempt, outcome
    from looked
    where outcome = any ($6::text[]) and not test and started_at >= $4 and started_at < $5
),
-- One look by id for each: scalar queries are never turned into joins over the days' partitions.
found as (
    select delivery_id, event_id, round
    from asked
    where round = coalesce(
            (select last.round from walhook.delivery_round as last where last.delivery_id = asked.delivery_id), 1)
        and (outcome <> 'failed' or (
            select pending.round = asked.round and pending.attempt = asked.attempt + 1
            from walhook.delivery as pending where pending.id = asked.delivery_id))
        and (select true from walhook.event where event.id = asked.event_id)
)
select way.looked, way.last, found.delivery_id, found.event_id, found.round
from (select count(*) as looked, (array_agg(id order by id desc))[1] as last from looked) as way
left join found on true
