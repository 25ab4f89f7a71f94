-- Where a slot begins: whoever read it before moves nothing any more. $1 slot, $2 how far may be acknowledged
insert into walhook.acknowledgement (slot, limit_lsn)
values ($1, $2)
on conflict (slot) do update set limit_lsn = excluded.limit_lsn, reader = null
