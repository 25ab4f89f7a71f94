-- name: claim
-- Makes a reader the only one that moves the limit, unless another has claimed it in between.
-- Always durable: an earlier reader must not move the limit again after a crash. $1 slot, $2 the
-- previous reader, $3 the new one
insert into walhook.acknowledgement as known (slot, limit_lsn, reader)
values ($1, '0/0', $3)
on conflict (slot) do update set reader = excluded.reader
where known.reader is not distinct from $2
returning limit_lsn, set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)

-- name: limit
-- $1 slot
select limit_lsn from walhook.acknowledgement where slot = $1

-- name: lower
-- Lowers the limit when a reader stops. $1 slot, $2 reader, $3 the last acknowledged LSN
update walhook.acknowledgement
set limit_lsn = $3
where slot = $1 and reader = $2

-- name: raise
-- Always durable: WAL is acknowledged up to the limit. $1 slot, $2 reader, $3 the new limit
update walhook.acknowledgement
set limit_lsn = greatest(limit_lsn, $3)
where slot = $1 and reader = $2
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)

-- name: reader
-- $1 slot
select reader from walhook.acknowledgement where slot = $1

-- name: set
-- The limit of a new slot. Clears the reader, so that earlier readers can no longer move the limit.
-- Always durable: WAL is acknowledged up to it. $1 slot, $2 the limit
insert into walhook.acknowledgement (slot, limit_lsn)
values ($1, $2)
on conflict (slot) do update set limit_lsn = excluded.limit_lsn, reader = null
returning set_config(
    'synchronous_commit',
    replace(current_setting('synchronous_commit'), 'off', 'on'),
    true
)
