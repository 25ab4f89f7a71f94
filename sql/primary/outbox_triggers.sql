-- Walhook's triggers on the tables. $1 OIDs
select
    trigger.tgrelid as oid,
    trigger.tgname::text as name,
    function.proname::text as function,
    trigger.tgenabled in ('O', 'A') as enabled,
    trigger.tgenabled = 'A' as always,
    trigger.tgtype & 1 = 1 as for_each_row,
    obj_description(function.oid, 'pg_proc') as comment
from pg_catalog.pg_trigger trigger
join pg_catalog.pg_proc function on function.oid = trigger.tgfoid
where trigger.tgrelid = any($1::oid[]) and function.pronamespace = to_regnamespace('walhook_capture')
