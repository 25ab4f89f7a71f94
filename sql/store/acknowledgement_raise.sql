-- Always durable: WAL is acknowledged up to the limit. $1 slot, $2 reader, $3 the new limit
update walhook.acknowledgement
set limit_lsn = greatest(limit_lsn, $3)
where slot = $1 and reader = $2
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
