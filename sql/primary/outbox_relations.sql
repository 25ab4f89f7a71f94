-- A table and, where it is partitioned, all below it: what a trigger on it has to know. $1 schema, $2 table
with root as (
    select class.oid
    from pg_catalog.pg_class class
    join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
    where namespace.nspname = $1 and class.relname = $2 and class.relkind in ('r', 'p')
), tree as (
    select root.oid from root
    union
    select part.relid from root, pg_partition_tree(root.oid) part
)
select
    class.oid,
    namespace.nspname::text as schema,
    class.relname::text as name,
    pg_has_role(class.relowner, 'usage') as owned,
    has_table_privilege(class.oid, 'trigger') as may_trigger,
    row_security_active(class.oid) as row_security,
    class.relkind = 'p' as partitioned,
    columns.names as columns,
    columns.printed,
    columns.readable,
    array(
        select attribute.attname::text
        from pg_catalog.pg_index index
        join pg_catalog.pg_attribute attribute
            on attribute.attrelid = index.indrelid and attribute.attnum = any((index.indkey::int2[])[0:index.indnkeyatts - 1])
        where index.indrelid = class.oid and index.indisprimary
        order by attribute.attnum
    ) as key
from root
cross join tree
join pg_catalog.pg_class class on class.oid = tree.oid
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
cross join lateral (
    select
        coalesce(array_agg(attribute.attname::text order by attribute.attnum), '{}') as names,
        -- A cast to text that is a function of its own may give other words than the type's output, which the log has. The blanks
        -- that fill up character(n) are none of the value.
        coalesce(array_agg(exists (
            select from pg_catalog.pg_cast cast_
            where cast_.castsource = attribute.atttypid and cast_.casttarget = 'text'::regtype and cast_.castmethod = 'f'
                and cast_.castsource <> 'bpchar'::regtype
        ) order by attribute.attnum), '{}') as printed,
        coalesce(array_agg(attribute.attname::text order by attribute.attnum) filter (
            where has_schema_privilege(namespace.oid, 'usage')
                and has_column_privilege(class.oid, attribute.attnum, 'select')
        ), '{}') as readable
    from pg_catalog.pg_attribute attribute
    where attribute.attrelid = class.oid and attribute.attnum > 0 and not attribute.attisdropped
) columns
order by class.oid <> root.oid, class.oid
