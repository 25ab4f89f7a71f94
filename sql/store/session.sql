-- name: erase
-- $1 user, $2 rows at most
delete from walhook.session where hash in (select hash from walhook.session where user_id = $1 limit $2)

-- name: expired
-- Returns those of these sessions that have not ended. An open stream does not prolong its session.
-- $1 hashes, $2 the longest life and $3 the longest idle time, in seconds
select session.hash
from walhook.session
where session.hash = any ($1::bytea[])
  and session.created_at > now() - make_interval(secs => $2)
  and session.used_at > now() - make_interval(secs => $3)
  and (session.token_id is null or exists (select from walhook.valid_api_token where id = session.token_id))

-- name: end
-- $1 hash
delete from walhook.session where hash = $1

-- name: find
-- $1 hash, $2 the longest life and $3 the longest idle time, in seconds. `stale` sessions need a
-- new time of use.
select session.user_id, session.token_id, coalesce(token.scope, 'full') as scope,
       session.used_at < now() - interval '1 minute' as stale
from walhook.session
left join walhook.valid_api_token as token on token.id = session.token_id
where session.hash = $1
  and session.created_at > now() - make_interval(secs => $2)
  and session.used_at > now() - make_interval(secs => $3)
  and (session.token_id is null or token.id is not null)

-- name: insert
-- $1 hash, $2 user, $3 the API token
insert into walhook.session (hash, user_id, token_id) values ($1, $2, $3)

-- name: limit
-- $1 user, $2 how many sessions to keep, newest first
delete from walhook.session
where hash in (select hash from walhook.session where user_id = $1 order by created_at desc, hash offset $2)

-- name: remove
-- $1 the longest life and $2 the longest idle time, in seconds. Also removes sessions whose token
-- has ended.
delete from walhook.session
where created_at <= now() - make_interval(secs => $1)
   or used_at <= now() - make_interval(secs => $2)
   or token_id is not null and not exists (select from walhook.valid_api_token where id = session.token_id)

-- name: reveal
-- $1 hash, $2 webhook, or null for none, $3 the duration in seconds
update walhook.session set reveals = $2, reveals_until = now() + make_interval(secs => $3) where hash = $1

-- name: revealed
-- $1 hash, $2 webhook. No row if the session may not show the secret.
select webhook.secret, webhook.secret_key_id
from walhook.session
join walhook.webhook on webhook.id = session.reveals and webhook.user_id = session.user_id
where session.hash = $1 and session.reveals = $2 and session.reveals_until > now()

-- name: touch
-- $1 hash
update walhook.session set used_at = now() where hash = $1

-- name: insert_link
-- $1 hash, $2 the time until which it is kept. Inserts no row if it was used before.
insert into walhook.used_link (hash, expires_at) values ($1, $2) on conflict do nothing

-- name: remove_links
delete from walhook.used_link where expires_at < now()
