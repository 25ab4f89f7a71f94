-- Makes a reader the only one that moves the limit, unless another has claimed it in between. Always durable: an earlier reader must not
-- move the limit again after a crash. $1 slot, $2 the previous reader, $3 the new one
insert into walhook.acknowledgement as known (slot, limit_lsn, reader)
values ($1, '0/0', $3)
on conflict (slot) do update set reader = excluded.reader
where known.reader is not distinct from $2
returning limit_lsn, set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
