-- $1 user, or null for all users
select id, user_id, name, created_at, revoked_at
from walhook.api_token
where $1::text is null or user_id = $1
order by id
