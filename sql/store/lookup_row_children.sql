-- $1 table, $2 the rows to which its rows belong
select row_id, state
from walhook.lookup_row
where relation = $1 and parent_id = any($2::bigint[])
