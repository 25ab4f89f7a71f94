-- Moves the checkpoint to another timeline if no other process has moved it. From then on, no batch that was read on an earlier
-- timeline is stored. Always durable: WAL of the new timeline is acknowledged next. $1 slot, $2 commit, $3 ordinal and $4 timeline
-- expected, $5 timeline
update walhook.checkpoint
set timeline = $5
where slot = $1 and commit_lsn = $2 and ordinal = $3 and timeline = $4 and window_to is null
returning set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true)
