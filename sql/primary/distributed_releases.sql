-- Releases already distributed. $1 the platform's values that mean so
select {id}::bigint
from {table}
where {delivery_status} = any($1)
