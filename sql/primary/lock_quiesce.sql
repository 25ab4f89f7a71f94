-- Waits for vacuums and for other changes of the table's definition. This wait blocks no statement that reads or writes rows, and no other
-- lock is held meanwhile. PostgreSQL cancels an autovacuum only for a session that has waited for deadlock_timeout, and never one
-- that prevents wraparound.
select
    set_config('lock_timeout', (setting::int * 2)::text, true),
    set_config('statement_timeout', '0', true)
from pg_catalog.pg_settings
where name = 'deadlock_timeout';
lock table only {table} in share update exclusive mode;
