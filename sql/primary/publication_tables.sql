-- The tables a publication covers: by name, and by number as they were listed. $1 the publication's name
select listed.schemaname::text as schema, listed.tablename::text as name
from pg_catalog.pg_publication_tables listed
where listed.pubname = $1
union
select namespace.nspname::text, class.relname::text
from pg_catalog.pg_publication publication
join pg_catalog.pg_publication_rel member on member.prpubid = publication.oid
join pg_catalog.pg_class class on class.oid = member.prrelid
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
where publication.pubname = $1
