-- $1 hash, $2 the time until which it is kept. Inserts no row if it was used before.
insert into walhook.used_link (hash, expires_at) values ($1, $2) on conflict do nothing
