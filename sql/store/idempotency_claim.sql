-- $1 id, $2 user, $3 hash of the key, $4 fingerprint of the request, $5 seconds after which an unfinished request is considered dead,
-- $6 the limit of keys per user.
-- Replaces an expired claim, and the claim of a dead request. Returns no row if the key is claimed or the limit is reached.
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
