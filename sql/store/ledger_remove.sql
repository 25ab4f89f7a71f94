-- $1 tables, $2 rows
delete from walhook.last_seen
using unnest($1::smallint[], $2::bigint[]) as gone (relation, row_id)
where last_seen.relation = gone.relation and last_seen.row_id = gone.row_id
