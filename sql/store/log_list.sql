-- Examines the newest entries within bounds and returns those that match, and the last one if as many as allowed were examined: the search
-- continues below it.
-- $1 user, $2 webhook, $3 and $4 the bounds of ids, $5 event, $6 outcome, $7 since, $8 until, $9 the status's
-- first digit (0: no response), $10 entries to examine at most, $11 entries to return at most.
-- The bounds are never null, so that they are bounds of the index and choose partitions.
select examined.*,
       -- An expired event counts as not repaired.
       coalesce((select event.repaired from walhook.event where event.id = examined.event_id), false) as repaired
from (
    select attempt.id, attempt.delivery_id, attempt.event_id, attempt.sequence, attempt.event_kind, attempt.round, attempt.attempt,
           attempt.test, attempt.started_at, attempt.duration_ms, attempt.outcome, attempt.response_status,
           attempt.error_kind, attempt.error_message,
           ($5::text is null or attempt.event_kind = $5)
           and ($6::text is null or attempt.outcome = $6)
           and ($7::timestamptz is null or attempt.started_at >= $7)
           and ($8::timestamptz is null or attempt.started_at < $8)
           and ($9::smallint is null
                or case when attempt.response_status is null then $9 = 0 else attempt.response_status / 100 = $9 end) as is_match,
           row_number() over (order by attempt.id desc) = $10 as is_last
    from walhook.attempt
    where attempt.webhook_id = $2
      and exists (select from walhook.webhook where user_id = $1 and id = $2)
      and attempt.id >= $3
      and attempt.id < $4
    order by attempt.id desc
    limit $10
) as examined
where examined.is_match or examined.is_last
order by examined.id desc
limit $11
