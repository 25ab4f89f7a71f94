-- $1 id. A second revocation does not change the time of the first.
update walhook.api_token as token
set revoked_at = coalesce(token.revoked_at, now())
from (select id, revoked_at from walhook.api_token where id = $1 for update) before
where token.id = before.id
returning token.user_id, before.revoked_at is null as ended_now
