-- $1 ids, $2 users, $3 kinds, $4 occurred, $5 commits, $6 ordinals, $7 labels, $8 data as text, $9 whether a repair found them
with counter as (
    update walhook.event_sequence set last = last + cardinality($1::uuid[]) returning last - cardinality($1::uuid[]) as first
)
insert into walhook.event (id, user_id, kind, occurred_at, commit_lsn, ordinal, label_id, data, repaired, sequence)
select id, user_id, kind, occurred_at, commit_lsn, ordinal, label_id, data::json, $9, counter.first + number
from counter
cross join (
    -- Faster than one `unnest` of all arrays in `from`, which is materialised first.
    select unnest($1::uuid[]) as id, unnest($2::text[]) as user_id, unnest($3::text[]) as kind,
        unnest($4::timestamptz[]) as occurred_at, unnest($5::pg_lsn[]) as commit_lsn, unnest($6::bigint[]) as ordinal,
        unnest($7::bigint[]) as label_id, unnest($8::text[]) as data, generate_subscripts($1::uuid[], 1) as number
) as raised
