-- $1 id, $2 user, $3 hash of the key, $4 fingerprint of the request, $5 seconds until its process is taken to be dead.
-- $6 how many keys one user may have: a new one beyond them is not taken.
-- A row whose time is over, or whose request never came to an end, is taken over under the new id; any other stays: no row.
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
