-- Tables, and the ids of their memberships in a publication: null if the publication does not list the table. A table that leaves it and
-- returns gets another id. $1 the publication, $2 schemas, $3 tables
select wanted.schema || '.' || wanted.name as table, member.oid as member
from unnest($2::text[], $3::text[]) as wanted (schema, name)
left join (
    pg_catalog.pg_publication publication
    join pg_catalog.pg_publication_rel member on member.prpubid = publication.oid
    join pg_catalog.pg_class class on class.oid = member.prrelid
    join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
) on publication.pubname = $1 and namespace.nspname = wanted.schema and class.relname = wanted.name
