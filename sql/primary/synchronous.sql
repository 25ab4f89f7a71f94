-- Whether commits wait for a standby, and this connection's application_name, which replication uses too, if it counts as a standby
select names <> '' as synchronous, case when exists (
    select from regexp_matches(names, '"(?:[^"]|"")*"|[^\s,()"]+', 'g') as found (word)
    where lower(trim('"' from word[1])) in ('*', lower(current_setting('application_name')))
) then current_setting('application_name') end as own_standby
from current_setting('synchronous_standby_names') as names
