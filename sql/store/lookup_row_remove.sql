-- $1 tables, $2 rows
delete from walhook.lookup_row
using unnest($1::smallint[], $2::bigint[]) as gone (relation, row_id)
where lookup_row.relation = gone.relation and lookup_row.row_id = gone.row_id
