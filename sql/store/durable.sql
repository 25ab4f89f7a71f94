-- This transaction's commit is flushed before it counts, also where the role or the database says otherwise. A setting that
-- waits for more than that stays as it is.
select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'
