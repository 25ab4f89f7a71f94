-- Declares a cursor over a watched table's rows: id and watched columns, ordered by id
declare watched_rows no scroll cursor for
select this.{id}::text, {columns}
from {table} as this
order by {order}
