-- Who has which add-on
select {user_id}, {addon}
from {table}
