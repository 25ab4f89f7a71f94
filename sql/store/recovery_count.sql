-- How many deliveries a recovery would find in a webhook's log, as recovery_scan.sql finds them.
-- $1 webhook, $2 and $3 the ids between which to look, $4 since, $5 until, $6 outcomes, $7 rows to look at
with looked as materialized (
    select delivery_id, event_id, round, attempt, outcome, test, started_at
    from walhook.attempt
    where webhook_id = $1 and id > $2 and id < $3
    order by id
    limit $7
),
asked as materialized (
    select delivery_id, event_id, round, attempt, outcome
    from looked
    where outcome = any ($6::text[]) and not test and started_at >= $4 and started_at < $5
)
select (select count(*) from looked) as looked, count(*) as found
from asked
where round = coalesce(
        (select last.round from walhook.delivery_round as last where last.delivery_id = asked.delivery_id), 1)
    and (outcome <> 'failed' or (
        select pending.round = asked.round and pending.attempt = asked.attempt + 1
        from walhook.delivery as pending where pending.id = asked.delivery_id))
    and (select true from walhook.event where event.id = asked.event_id)
