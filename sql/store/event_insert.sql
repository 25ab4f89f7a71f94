-- $1 ids, $2 users, $3 kinds, $4 occurred, $5 commits, $6 ordinals, $7 data as text, $8 whether a repair found them
insert into walhook.event (id, user_id, kind, occurred_at, commit_lsn, ordinal, data, repaired)
select id, user_id, kind, occurred_at, commit_lsn, ordinal, data::json, $8
from (
    -- Faster than one `unnest` of all arrays in `from`, which is materialised first.
    select unnest($1::uuid[]) as id, unnest($2::text[]) as user_id, unnest($3::text[]) as kind,
        unnest($4::timestamptz[]) as occurred_at, unnest($5::pg_lsn[]) as commit_lsn, unnest($6::bigint[]) as ordinal,
        unnest($7::text[]) as data
) as raised
