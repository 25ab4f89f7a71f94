-- Whether commits wait for a standby, and this connection's application_name, which replication uses too, if it counts as a standby.
-- Also which server this is: its cluster, and its timeline, which is null on a standby
select names <> '' as synchronous, case when exists (
    select from regexp_matches(names, '"(?:[^"]|"")*"|[^\s,()"]+', 'g') as found (word)
    where lower(trim('"' from word[1])) in ('*', lower(current_setting('application_name')))
) then current_setting('application_name') end as own_standby,
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
    case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end as timeline
from current_setting('synchronous_standby_names') as names
