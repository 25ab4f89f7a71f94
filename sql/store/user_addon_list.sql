-- $1 users
select user_id, addon, copies
from walhook.user_addon
where user_id = any($1::text[])
