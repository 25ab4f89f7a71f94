-- name: count
-- Counts at most $1 events
select count(*) as events, min(recorded_at) as oldest, mode() within group (order by reason) as reason
from (select recorded_at, reason from walhook.unrouted_event order by id limit $1) as first

-- name: expire
-- $1 days, $2 events at most
delete from walhook.unrouted_event
where id in (
    select id from walhook.unrouted_event where recorded_at < now() - make_interval(days => $1) order by recorded_at limit $2
)

-- name: insert
-- $1 ids, $2 kinds, $3 reasons, $4 tables, $5 row ids, $6 occurred, $7 commits, $8 ordinals, $9
-- details, $10 changes
insert into walhook.unrouted_event (id, kind, reason, source, source_id, occurred_at, commit_lsn, ordinal, detail, change)
select * from unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::pg_lsn[], $8::bigint[], $9::text[], $10::json[]
)
on conflict (id) do nothing

-- name: list
-- The next events by id. $1 reason or null, $2 recorded since or null, $3 the id after which to
-- start, $4 events at most
select id, kind, reason, source, source_id, occurred_at, commit_lsn, ordinal, detail, change::text as change
from walhook.unrouted_event
where ($1::text is null or reason = $1) and ($2::timestamptz is null or recorded_at >= $2) and id > $3
order by id
limit $4

-- name: remove
-- $1 ids
delete from walhook.unrouted_event where id = any($1::uuid[])
