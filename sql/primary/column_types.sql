-- The columns of a table and their types. $1 schema, $2 table
select attribute.attname::text, format_type(attribute.atttypid, attribute.atttypmod)
from pg_catalog.pg_attribute attribute
join pg_catalog.pg_class class on class.oid = attribute.attrelid
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
where namespace.nspname = $1 and class.relname = $2 and attribute.attnum > 0 and not attribute.attisdropped
