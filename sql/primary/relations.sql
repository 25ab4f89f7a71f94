-- A table and, where it is partitioned, all below it: each with what the log says of its old rows. $1 schema, $2 table, $3 the name of our
-- index, if there were one
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
    class.oid = root.oid as is_root,
    namespace.nspname::text as schema,
    class.relname::text as name,
    class.relreplident::text as identity,
    identity.name as identity_index,
    coalesce(identity.columns, '{}') as identity_columns,
    class.relkind = 'p' or class.relispartition as partitioned,
    own_index.indisvalid as own_index_valid,
    pg_has_role(class.relowner, 'usage') as owned,
    row_security_active(class.oid) as row_security,
    array(
        select attribute.attname::text
        from pg_catalog.pg_attribute attribute
        where attribute.attrelid = class.oid and attribute.attnum > 0 and not attribute.attisdropped
            and attribute.attgenerated = ''
    ) as columns,
    array(
        select attribute.attname::text
        from pg_catalog.pg_attribute attribute
        where attribute.attrelid = class.oid and attribute.attnum > 0 and attribute.attnotnull
    ) as not_null,
    array(
        select attribute.attname::text
        from pg_catalog.pg_attribute attribute
        where attribute.attrelid = class.oid and attribute.attnum > 0 and not attribute.attisdropped
            and has_schema_privilege(namespace.oid, 'usage')
            and has_column_privilege(class.oid, attribute.attnum, 'select')
    ) as readable
from root
cross join tree
join pg_catalog.pg_class class on class.oid = tree.oid
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
left join lateral (
    select index_class.relname::text as name, array_agg(attribute.attname::text) as columns
    from pg_catalog.pg_index index
    join pg_catalog.pg_class index_class on index_class.oid = index.indexrelid
    join pg_catalog.pg_attribute attribute
        on attribute.attrelid = index.indrelid and attribute.attnum = any((index.indkey::int2[])[0:index.indnkeyatts - 1])
    where index.indrelid = class.oid
        and ((class.relreplident = 'd' and index.indisprimary) or (class.relreplident = 'i' and index.indisreplident))
    group by index_class.relname
) identity on true
left join (
    select index.indrelid, index.indisvalid, index_class.relname
    from pg_catalog.pg_index index
    join pg_catalog.pg_class index_class on index_class.oid = index.indexrelid
) own_index on own_index.indrelid = class.oid and own_index.relname = $3
order by is_root desc, class.oid
