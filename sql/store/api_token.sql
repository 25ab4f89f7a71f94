-- name: erase
-- $1 user, $2 rows at most
delete from walhook.api_token where id in (select id from walhook.api_token where user_id = $1 limit $2)

-- name: revoked
-- Returns those of these API tokens that are valid. $1 ids
select id from walhook.api_token where id = any ($1) and revoked_at is null

-- name: insert
-- $1 id, $2 user, $3 name, $4 hash
insert into walhook.api_token (id, user_id, name, hash)
values ($1, $2, $3, $4)

-- name: list
-- $1 user, or null for all users
select id, user_id, name, created_at, revoked_at
from walhook.api_token
where $1::text is null or user_id = $1
order by id

-- name: revoke
-- $1 id. A second revocation does not change the time of the first.
update walhook.api_token as token
set revoked_at = coalesce(token.revoked_at, now())
from (select id, revoked_at from walhook.api_token where id = $1 for update) before
where token.id = before.id
returning token.user_id, before.revoked_at is null as ended_now

-- name: find_user
-- $1 hash
select id, user_id
from walhook.api_token
where hash = $1 and revoked_at is null
