-- Bounds the wait for a lock to less than deadlock_timeout: a session that waits for this one while this one waits for it would
-- otherwise be aborted as deadlocked.
select set_config('statement_timeout', greatest(setting::int * 4 / 5, 50)::text, true)
from pg_catalog.pg_settings
where name = 'deadlock_timeout'
