-- name: add
-- $1 reasons, $2 how many, $3 tables, $4 row ids, $5 values, $6 times of the last ones
insert into walhook.ignored_transition as ignored (reason, transitions, source, source_id, value, last_at)
select * from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::timestamptz[])
on conflict (reason) do update
set transitions = ignored.transitions + excluded.transitions,
    source = excluded.source,
    source_id = excluded.source_id,
    value = excluded.value,
    last_at = excluded.last_at

-- name: expire
-- $1 days
delete from walhook.ignored_transition where last_at < now() - make_interval(days => $1)

-- name: list
select reason, transitions, source, source_id, value, last_at from walhook.ignored_transition order by reason
