-- The rows of a watched table with their watched columns, in order of id
declare watched_rows no scroll cursor for
select {id}::bigint, {columns}
from {table} as this
order by {order}
