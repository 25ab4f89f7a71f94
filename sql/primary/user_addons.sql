-- The add-ons of every user
select {user_id}, {addon}
from {table}
