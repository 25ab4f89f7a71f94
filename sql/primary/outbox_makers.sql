-- The current snapshot, and the transactions that created Walhook's triggers on some of the tables, as the lower 32 bits of their ids.
-- Others may have been replaced since. $1 the tables' OIDs
select
    pg_current_snapshot()::text as snapshot,
    array(
        select distinct made.xmin::text::bigint
        from pg_catalog.pg_trigger made
        join pg_catalog.pg_proc function on function.oid = made.tgfoid
        join pg_catalog.pg_namespace home on home.oid = function.pronamespace
        where made.tgrelid = any ($1) and home.nspname = 'walhook_capture'
    ) as makers
