-- $1 hash
select id, user_id
from walhook.api_token
where hash = $1 and revoked_at is null
