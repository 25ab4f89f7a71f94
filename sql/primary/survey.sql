-- name: tables
-- Tables that rows can be captured from or looked up in: neither partitions nor tables that inherit,
-- whose rows belong to their root. Null rows: never analyzed. $1 the most tables
select
    class.oid,
    namespace.nspname::text as schema,
    class.relname::text as name,
    (
        -- Of partitioned tables, the planner has an estimate only after a manual analyze.
        with recursive tree as (
            select class.oid as oid
            union
            select child.inhrelid from tree join pg_catalog.pg_inherits child on child.inhparent = tree.oid
        )
        select sum(part.reltuples)::bigint
        from tree join pg_catalog.pg_class part on part.oid = tree.oid
        where part.reltuples >= 0 and part.relkind = 'r'
    ) as rows
from pg_catalog.pg_class class
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
where class.relkind in ('r', 'p') and class.relpersistence = 'p'
    and not exists (select from pg_catalog.pg_inherits parent where parent.inhrelid = class.oid)
    and namespace.nspname !~ '^pg_' and namespace.nspname not in ('information_schema', 'walhook')
    and not exists (
        -- Of extensions
        select from pg_catalog.pg_depend depend
        where depend.classid = 'pg_class'::regclass and depend.objid = class.oid and depend.deptype = 'e'
    )
order by namespace.nspname, class.relname
limit $1

-- name: columns
-- The columns of tables with what the catalog and the statistics say about them. $1 the oids of the
-- tables
with recursive types as (
    select attribute.attrelid as relation, attribute.attnum as number, attribute.atttypid as oid
    from pg_catalog.pg_attribute attribute
    where attribute.attrelid = any($1) and attribute.attnum > 0 and not attribute.attisdropped
    union all
    select types.relation, types.number, domain.typbasetype
    from types join pg_catalog.pg_type domain on domain.oid = types.oid and domain.typtype = 'd'
)
select
    attribute.attrelid as relation,
    attribute.attname::text as name,
    format_type(base.oid, null) as type_name,
    base.typcategory::text as category,
    attribute.attnotnull as not_null,
    attribute.attgenerated <> '' as generated,
    has_schema_privilege(class.relnamespace, 'usage')
        and coalesce(has_column_privilege(attribute.attrelid, attribute.attnum, 'select'), false) as readable,
    exists (
        select from pg_catalog.pg_index index
        where index.indrelid = attribute.attrelid and index.indisprimary
            and index.indnkeyatts = 1 and index.indkey[0] = attribute.attnum
    ) as is_key,
    exists (
        select from pg_catalog.pg_index index
        where index.indrelid = attribute.attrelid and index.indisunique and index.indpred is null
            and index.indnkeyatts = 1 and index.indkey[0] = attribute.attnum
    ) as is_unique,
    foreign_key.schema as foreign_schema,
    foreign_key.name as foreign_table,
    foreign_key.column as foreign_column,
    array(
        select label.enumlabel::text from pg_catalog.pg_enum label where label.enumtypid = base.oid order by label.enumsortorder
    ) as labels,
    array(
        select pg_catalog.pg_get_constraintdef(constraint_.oid)
        from pg_catalog.pg_constraint constraint_
        where constraint_.conrelid = attribute.attrelid and constraint_.contype = 'c' and constraint_.conkey = array[attribute.attnum]
    ) as checks,
    pg_catalog.col_description(attribute.attrelid, attribute.attnum) as comment,
    -- Those of the planner, for columns that the role may read, without row-level security.
    coalesce(statistics.most_common_vals::text::text[], '{}') as common,
    coalesce(statistics.most_common_freqs, '{}') as frequencies,
    coalesce(statistics.null_frac, 0) as null_fraction
from types
join pg_catalog.pg_type base on base.oid = types.oid and base.typtype <> 'd'
join pg_catalog.pg_attribute attribute on attribute.attrelid = types.relation and attribute.attnum = types.number
join pg_catalog.pg_class class on class.oid = attribute.attrelid
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
left join pg_catalog.pg_stats statistics
    on statistics.schemaname = namespace.nspname and statistics.tablename = class.relname
    and statistics.attname = attribute.attname
    and statistics.inherited = exists (select from pg_catalog.pg_inherits child where child.inhparent = class.oid)
left join lateral (
    select target_space.nspname::text as schema, target.relname::text as name, target_column.attname::text as column
    from pg_catalog.pg_constraint constraint_
    join pg_catalog.pg_class target on target.oid = constraint_.confrelid
    join pg_catalog.pg_namespace target_space on target_space.oid = target.relnamespace
    join pg_catalog.pg_attribute target_column
        on target_column.attrelid = target.oid and target_column.attnum = constraint_.confkey[1]
    where constraint_.conrelid = attribute.attrelid and constraint_.contype = 'f' and constraint_.conkey = array[attribute.attnum]
    limit 1
) foreign_key on true
order by attribute.attrelid, attribute.attnum

-- name: sample
-- The values of a column in a part of the table's rows, most frequent first. $1 the most values
select value, count(*) as found
from (
    select {column} as value from (select {name} from {table} as this where {condition} limit 10000) as this
) as sampled
where value is not null
group by value
order by 2 desc, 1
limit $1

-- name: meanings
-- What the keys of a small table mean. $1 the most rows
select {key}::text as code, {label}::text as meaning
from {table} as this
limit $1
