-- All columns of rows, as text. $1 ids as text
select {columns}
from {table} as this
where this.{id} = any(($1::text[])::{id_type}[])
