-- Starts the next round of deliveries: at attempt 1, due now. It replaces a pending retry, or an attempt in flight, whose lease
-- it ends.
-- $1 ids in order, $2 events, $3 the rounds they are in, $4 webhook, $5 their numbers, $6 whether to skip those that are
-- no longer in that round. A delivery that is pending keeps its order key; another is outside the order.
with next as (
    insert into walhook.delivery_round (delivery_id, round)
    select id, round + 1 from unnest($1::uuid[], $3::smallint[]) with ordinality as wanted (id, round, position)
    where round < 32767
    order by position
    on conflict (delivery_id) do update set round = delivery_round.round + 1
    where delivery_round.round < 32767 and (not $6::boolean or delivery_round.round = excluded.round - 1)
    returning delivery_id, round
)
insert into walhook.delivery (id, webhook_id, event_id, round, due_at, sequence)
select next.delivery_id, $4::uuid, wanted.event_id, next.round, now(), wanted.sequence
from next
join unnest($1::uuid[], $2::uuid[], $5::bigint[]) as wanted (id, event_id, sequence) on wanted.id = next.delivery_id
order by next.delivery_id
on conflict (id) do update set round = excluded.round, attempt = 1, due_at = excluded.due_at, lease = null
returning id, round
