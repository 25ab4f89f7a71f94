-- name: erase
-- $1 user, $2 rows at most
delete from walhook.api_token where id in (select id from walhook.api_token where user_id = $1 limit $2)

-- name: revoked
-- Returns those of these API tokens that are valid. $1 ids
select id from walhook.valid_api_token where id = any ($1)

-- name: insert
-- Inserts a token unless its user has too many valid ones, and returns its id. $1 id, $2 user, $3
-- name, $4 scope, $5 hash, $6 when it expires or null, $7 the most valid tokens of the user
insert into walhook.api_token (id, user_id, name, scope, hash, expires_at)
select $1, $2, $3, $4, $5, $6
where (select count(*) from walhook.valid_api_token where user_id = $2) < $7::bigint
returning id

-- name: limit
-- Removes a user's oldest tokens that are revoked or expired. $1 user, $2 how many to keep
delete from walhook.api_token
where id in (
    select id
    from walhook.api_token
    where user_id = $1 and (revoked_at is not null or expires_at <= now())
    order by id desc
    offset $2
)

-- name: list
-- $1 user, or null for all users
select id, user_id, name, scope, created_at, expires_at, used_at, revoked_at
from walhook.api_token
where $1::text is null or user_id = $1
order by id

-- name: of_user
-- A user's tokens, newest first. $1 user, $2 the first id, $3 the last id, $4 how many at most
select id, user_id, name, scope, created_at, expires_at, used_at, revoked_at
from walhook.api_token
where user_id = $1 and id between $2 and $3
order by id desc
limit $4

-- name: revoke
-- $1 id, $2 user, or null for any. A second revocation does not change the time of the first.
update walhook.api_token as token
set revoked_at = coalesce(token.revoked_at, now())
from (select id, revoked_at from walhook.api_token where id = $1 and ($2::text is null or user_id = $2) for update) before
where token.id = before.id
returning token.user_id, before.revoked_at is null as ended_now

-- name: find_user
-- `stale` tokens need a new time of use. $1 hash
select id, user_id, scope, coalesce(used_at < now() - interval '1 minute', true) as stale
from walhook.valid_api_token
where hash = $1

-- name: touch
-- Sets the time of use, unless another request is setting it. $1 id
update walhook.api_token
set used_at = now()
where id in (
    select id from walhook.api_token
    where id = $1 and coalesce(used_at < now() - interval '1 minute', true)
    for update skip locked
)
