-- Walhook's triggers that were disabled, enabled or dropped since setup noted them
select coalesce(found.tgname || ' of ' || found.tgrelid::regclass, 'one that is gone') as trigger
from walhook_capture.installed noted
left join pg_catalog.pg_trigger found on found.oid = noted.trigger
where found.xmin is distinct from noted.version
order by 1
