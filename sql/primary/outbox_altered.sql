-- Walhook's triggers that were disabled or enabled since setup noted them, or dropped from a table that still exists
select coalesce(found.tgname || ' of ' || found.tgrelid::regclass, 'one of ' || relation.oid::regclass || ' that is gone') as trigger
from walhook_capture.installed noted
left join pg_catalog.pg_trigger found on found.oid = noted.trigger
left join pg_catalog.pg_class relation on relation.oid = noted.relation
where found.xmin is distinct from noted.version and (found.oid is not null or relation.oid is not null)
order by 1
