-- name: erase_labels
-- Relation 7 is the table of labels. $1 user, $2 rows at most
delete from walhook.lookup_row
where (relation, row_id) in (
    select relation, row_id from walhook.lookup_row where relation = 7 and state::json->>0 = $1 limit $2
)

-- name: erase_releases
-- Relation 1 is the table of releases, relation 7 that of labels. $1 user, $2 rows at most
delete from walhook.lookup_row
where (relation, row_id) in (
    select release.relation, release.row_id
    from walhook.lookup_row as label
    join walhook.lookup_row as release on release.relation = 1 and release.state::json->>0 = label.row_id::text
    where label.relation = 7 and label.state::json->>0 = $1
    limit $2
)

-- name: children
-- $1 table, $2 the rows to which its rows belong
select row_id, state
from walhook.lookup_row
where relation = $1 and parent_id = any($2::bigint[])

-- name: empty
-- $1 tables that were truncated
delete from walhook.lookup_row where relation = any($1::smallint[])

-- name: forget
truncate walhook.lookup_row, walhook.lookup_table

-- name: list
-- $1 table, $2 rows
select row_id, state
from walhook.lookup_row
where relation = $1 and row_id = any($2::bigint[])

-- name: put
-- $1 tables, $2 rows, $3 states, $4 parents
insert into walhook.lookup_row (relation, row_id, state, parent_id)
select * from unnest($1::smallint[], $2::bigint[], $3::text[], $4::bigint[])
on conflict (relation, row_id) do update set state = excluded.state, parent_id = excluded.parent_id
where lookup_row.state <> excluded.state

-- name: remove
-- $1 tables, $2 rows
delete from walhook.lookup_row
using unnest($1::smallint[], $2::bigint[]) as gone (relation, row_id)
where lookup_row.relation = gone.relation and lookup_row.row_id = gone.row_id

-- name: tables
-- The tables whose rows are copied, with the mapping by which they were read
select relation, mapping from walhook.lookup_table

-- name: put_table
-- $1 table, $2 its mapping
insert into walhook.lookup_table (relation, mapping) values ($1, $2)

-- name: remove_tables
-- $1 tables. Their rows no longer follow the stream
delete from walhook.lookup_table where relation = any($1::smallint[])
