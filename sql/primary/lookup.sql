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

-- name: rows
-- The rows of one table for a set of keys. Values are text, as in the stream. $1 keys as text
select {columns}
from {table} as this
where this.{key} = any(($1::text[])::{key_type}[])
