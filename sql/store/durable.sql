-- Makes this transaction's commit wait until it is flushed, even if the role or the database is set not to. A setting that waits for more
-- is kept.
select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'
