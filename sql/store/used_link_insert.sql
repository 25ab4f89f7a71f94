-- $1 hash, $2 until when to remember it. No row where it was used before.
insert into walhook.used_link (hash, expires_at) values ($1, $2) on conflict do nothing
