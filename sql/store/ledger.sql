-- name: complete
-- The tables of which the ledger has every row
select relation from walhook.ledger_complete

-- name: empty
-- $1 tables that were truncated
delete from walhook.last_seen where relation = any($1::smallint[])

-- name: forget
-- Deletes a ledger that is no longer kept: compared with it, a repair would find transitions that
-- did not happen.
truncate walhook.last_seen, walhook.ledger_complete

-- name: mark_complete
-- $1 tables
insert into walhook.ledger_complete (relation)
select unnest($1::smallint[])
on conflict do nothing

-- name: page
-- $1 table, $2 the id after which the page begins, $3 its size
select row_id, state
from walhook.last_seen
where relation = $1 and row_id > $2
order by row_id
limit $3

-- name: put
-- $1 tables, $2 rows, $3 states
insert into walhook.last_seen (relation, row_id, state)
select * from unnest($1::smallint[], $2::bigint[], $3::text[])
on conflict (relation, row_id) do update set state = excluded.state
where last_seen.state <> excluded.state

-- name: remove
-- $1 tables, $2 rows
delete from walhook.last_seen
using unnest($1::smallint[], $2::bigint[]) as gone (relation, row_id)
where last_seen.relation = gone.relation and last_seen.row_id = gone.row_id
