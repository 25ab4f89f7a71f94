-- Whole rows, as text. $1 ids as text
select {columns}
from {table}
where {id} = any(($1::text[])::{id_type}[])
