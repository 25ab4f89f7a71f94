-- $1 table, $2 rows
select row_id, state
from walhook.lookup_row
where relation = $1 and row_id = any($2::bigint[])
