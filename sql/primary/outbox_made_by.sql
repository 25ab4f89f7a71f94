-- Whether a transaction created Walhook's triggers on some of the tables. Others may have been replaced since. $1 the lower 32 bits
-- of its id, $2 the tables' OIDs
select exists (
    select
    from pg_catalog.pg_trigger made
    join pg_catalog.pg_proc function on function.oid = made.tgfoid
    join pg_catalog.pg_namespace home on home.oid = function.pronamespace
    where made.tgrelid = any ($2) and home.nspname = 'walhook_capture' and made.xmin = $1::text::xid
)
