-- name: column_types
-- The columns of a table and their types, or the base types of domains. $1 schema, $2 table
with recursive types as (
    select attribute.attname::text as name, attribute.atttypid as oid, attribute.atttypmod as modifier
    from pg_catalog.pg_attribute attribute
    join pg_catalog.pg_class class on class.oid = attribute.attrelid
    join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
    where namespace.nspname = $1 and class.relname = $2 and attribute.attnum > 0 and not attribute.attisdropped
    union all
    select types.name, domain.typbasetype, domain.typtypmod
    from types join pg_catalog.pg_type domain on domain.oid = types.oid and domain.typtype = 'd'
)
select types.name, format_type(types.oid, types.modifier)
from types join pg_catalog.pg_type base on base.oid = types.oid and base.typtype <> 'd'

-- name: extra
-- A key and its value for a JSON object, in the form in which Walhook reads it from the WAL. Beside
-- another argument, a domain counts as its base type.
{key}, case
    when pg_typeof(coalesce({value}, null))
        in ('bool'::regtype, 'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'float4'::regtype, 'float8'::regtype, 'numeric'::regtype)
    then to_json({value})
    else to_json(left({value}::text, {characters}))
end

-- name: rows
-- The rows of one table for a set of keys. Values are text, as in the stream. $1 keys as text
select {columns}
from {table} as this
where this.{key} = any(($1::text[])::{key_type}[]) and {condition}

-- name: newest
-- The rows with the highest ids, which an index finds. $1 how many
select {columns}
from {table} as this
where {condition}
order by this.{key} desc
limit $1
