-- Who waits for us while we wait for them would be ended as deadlocked: we give up before the server looks for that.
select set_config('statement_timeout', greatest(setting::int * 4 / 5, 50)::text, true)
from pg_catalog.pg_settings
where name = 'deadlock_timeout'
