-- How many connections of this role and application wait for a lock or for a synchronous standby
select count(*)
from pg_stat_activity
where (wait_event = 'SyncRep' or wait_event_type = 'Lock')
    and usename = current_user and datname = current_database()
    and application_name = current_setting('application_name')
