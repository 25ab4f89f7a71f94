-- Lists a user's events, the newest first, without their data.
-- $1 user, $2 the number before which to start, $3 the lowest number to consider, $4 event, $5 rows at most
select id, kind, occurred_at, label_id, sequence
from walhook.event
where user_id = $1 and sequence < $2 and sequence >= $3 and ($4::text is null or kind = $4)
order by sequence desc
limit $5
