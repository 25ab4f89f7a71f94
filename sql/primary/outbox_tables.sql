-- The tables with triggers that call a function of capture by triggers, and whether the role owns them. $1 the function; null for all
select distinct
    namespace.nspname::text as schema,
    class.relname::text as name,
    pg_has_role(class.relowner, 'usage') as owned
from pg_catalog.pg_trigger trigger
join pg_catalog.pg_proc function on function.oid = trigger.tgfoid
join pg_catalog.pg_class class on class.oid = trigger.tgrelid
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
where function.pronamespace = to_regnamespace('walhook_capture') and function.proname = coalesce($1, function.proname)
