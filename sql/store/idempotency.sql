-- name: erase
-- $1 user, $2 rows at most
delete from walhook.idempotency where id in (select id from walhook.idempotency where user_id = $1 limit $2)

-- name: claim
-- $1 id, $2 user, $3 hash of the key, $4 fingerprint of the request, $5 seconds after which an
-- unfinished request is considered dead, $6 the limit of keys per user. Replaces an expired claim,
-- and the claim of a dead request. Returns no row if the key is claimed or the limit is reached.
insert into walhook.idempotency as present (id, user_id, key_hash, fingerprint, held_until)
select $1::uuid, $2::text, $3::bytea, $4::bytea, now() + make_interval(secs => $5::double precision)
where (select count(*) from (select from walhook.idempotency where user_id = $2 limit $6::bigint) as kept) < $6
   or exists (select from walhook.idempotency where user_id = $2 and key_hash = $3)
on conflict (user_id, key_hash) do update
set id = excluded.id,
    fingerprint = excluded.fingerprint,
    claimed_at = now(),
    held_until = excluded.held_until,
    answer = null,
    key_id = null
where present.claimed_at < now() - interval '24 hours'
   or (present.answer is null and present.held_until < now() and present.fingerprint = excluded.fingerprint)
returning id

-- name: find
-- $1 user, $2 hash of the key
select id, fingerprint, answer, key_id
from walhook.idempotency
where user_id = $1 and key_hash = $2

-- name: full
-- $1 user, $2 the limit of keys per user
select count(*) >= $2 from (select from walhook.idempotency where user_id = $1 limit $2) as kept

-- name: keep
-- $1 id, $2 the encrypted response, $3 the id of the master key
update walhook.idempotency
set answer = $2, key_id = $3
where id = $1

-- name: release
-- $1 the id of a claim without a response
delete from walhook.idempotency
where id = $1 and answer is null

-- name: remove
-- Responses are stored for 24 hours.
delete from walhook.idempotency
where claimed_at < now() - interval '24 hours'

-- name: reseal
-- Replaces an encrypted response, unless another request has claimed the key in the meantime.
-- $1 id, $2 the old value, $3 the new value, $4 its key
update walhook.idempotency
set answer = $3, key_id = $4
where id = $1 and answer = $2

-- name: sealed
-- Stored responses that are encrypted under other keys than $1, after the id $2, at most $3
select id, answer as sealed, key_id
from walhook.idempotency
where id > $2 and key_id <> $1
order by id
limit $3
