-- The limit of a new slot. Clears the reader, so that earlier readers can no longer move the limit. Always durable: WAL is
-- acknowledged up to it.
-- $1 slot, $2 the limit
insert into walhook.acknowledgement (slot, limit_lsn)
values ($1, $2)
on conflict (slot) do update set limit_lsn = excluded.limit_lsn, reader = null
returning set_config(
    'synchronous_commit',
    replace(current_setting('synchronous_commit'), 'off', 'on'),
    true
)
