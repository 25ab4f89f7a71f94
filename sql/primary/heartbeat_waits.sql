-- Whether the commit of a heartbeat waits for a synchronous standby, of this process or of an earlier one
select exists (
    select from pg_stat_activity
    where wait_event = 'SyncRep' and usename = current_user and datname = current_database()
      and query like '%pg_logical_emit_message(true, ''walhook'', $1)%'
) as waits
