-- The rows of one table for a set of keys. Values are text, as in the stream. $1 keys as text
select {columns}
from {table} as this
where this.{key} = any(($1::text[])::{key_type}[])
