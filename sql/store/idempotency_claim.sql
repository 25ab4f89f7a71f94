-- $1 id, $2 user, $3 hash of the key, $4 fingerprint of the request, $5 seconds until its process is taken to be dead.
-- A row whose time is over, or whose request never came to an end, is taken over under the new id; any other stays: no row.
insert into walhook.idempotency as present (id, user_id, key_hash, fingerprint, held_until)
values ($1, $2, $3, $4, now() + make_interval(secs => $5::double precision))
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
