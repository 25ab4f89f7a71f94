-- The type of a column that rows are looked up by. $1 schema, $2 table, $3 column
select format_type(attribute.atttypid, attribute.atttypmod)
from pg_catalog.pg_attribute attribute
join pg_catalog.pg_class class on class.oid = attribute.attrelid
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
where namespace.nspname = $1 and class.relname = $2 and attribute.attname = $3
    and attribute.attnum > 0 and not attribute.attisdropped
