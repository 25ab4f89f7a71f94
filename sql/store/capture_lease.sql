-- name: release
-- $1 slot, $2 holder
delete from walhook.capture_lease where slot = $1 and holder = $2

-- name: take
-- Takes or renews the lease on reading the outbox, unless another process holds it. $1 slot, $2
-- holder, $3 seconds
insert into walhook.capture_lease as lease (slot, holder, until)
values ($1, $2, clock_timestamp() + make_interval(secs => $3))
on conflict (slot) do update
set holder = excluded.holder, until = excluded.until
where lease.holder = excluded.holder or lease.until < clock_timestamp()
