-- The next events by id. $1 reason or null, $2 recorded since or null, $3 the id after which to start, $4 events at most
select id, kind, reason, source, source_id, occurred_at, commit_lsn, ordinal, detail, change::text as change
from walhook.unrouted_event
where ($1::text is null or reason = $1) and ($2::timestamptz is null or recorded_at >= $2) and id > $3
order by id
limit $4
