-- $1 ids, $2 kinds, $3 reasons, $4 tables, $5 row ids, $6 occurred, $7 commits, $8 ordinals, $9 details, $10 changes
insert into walhook.unrouted_event (id, kind, reason, source, source_id, occurred_at, commit_lsn, ordinal, detail, change)
select * from unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::pg_lsn[], $8::bigint[], $9::text[], $10::json[]
)
on conflict (id) do nothing
