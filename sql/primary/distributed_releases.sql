-- The ids of the releases that are already distributed. $1 the platform's values for "distributed"
select {id}
from {table}
where {delivery_status} = any($1)
