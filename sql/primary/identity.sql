-- name: create_index
create unique index concurrently {index} on {table} ({columns});

-- name: drop_index
drop index if exists {index};

-- name: current
-- A table's current name and replica identity, whether that is Walhook's index, whether an index of
-- the given name exists, and whether the role may change the table. $1 the table's OID, $2 the
-- index
select
    namespace.nspname::text as schema,
    class.relname::text as name,
    class.relreplident::text as identity,
    exists (
        select from pg_catalog.pg_index index
        join pg_catalog.pg_class index_class on index_class.oid = index.indexrelid
        where index.indrelid = class.oid and index.indisreplident and index_class.relname like 'walhook\_identity\_%'
    ) as own_index,
    exists (
        select from pg_catalog.pg_index index
        join pg_catalog.pg_class index_class on index_class.oid = index.indexrelid
        where index.indrelid = class.oid and index_class.relname = $2
    ) as has_index,
    pg_catalog.pg_has_role(class.relowner, 'usage') as owned,
    pg_catalog.pg_get_userbyid(class.relowner)::text as owner
from pg_catalog.pg_class class
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
where class.oid = $1

-- name: set
alter table {table} replica identity {identity};
