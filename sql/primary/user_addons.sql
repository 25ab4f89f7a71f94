-- Who has which add-on
select {user_id}::text, {addon}::text
from {table}
