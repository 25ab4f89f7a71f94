-- $1 ids, $2 users, $3 kinds, $4 occurred, $5 commits, $6 ordinals, $7 data as text, $8 whether found by comparison after a gap
insert into walhook.event (id, user_id, kind, occurred_at, commit_lsn, ordinal, data, repaired)
select id, user_id, kind, occurred_at, commit_lsn, ordinal, data::json, $8
from unnest($1::uuid[], $2::text[], $3::text[], $4::timestamptz[], $5::pg_lsn[], $6::bigint[], $7::text[])
    as raised (id, user_id, kind, occurred_at, commit_lsn, ordinal, data)
