-- A publication and the tables that it publishes. $1 its name
select
    publication.puballtables as all_tables,
    publication.pubinsert and publication.pubupdate and publication.pubdelete and publication.pubtruncate as all_operations,
    publication.pubviaroot as via_root,
    -- The column exists since PostgreSQL 18.
    coalesce(to_jsonb(publication) ->> 'pubgencols', 's') = 's' as stored_generated,
    pg_has_role(publication.pubowner, 'usage') as owned,
    coalesce(tables.schemas, '{}') as schemas,
    coalesce(tables.names, '{}') as names,
    array(
        select namespace.nspname || '.' || class.relname
        from pg_catalog.pg_publication_rel member
        join pg_catalog.pg_class class on class.oid = member.prrelid
        join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
        -- The column exists since PostgreSQL 15.
        where member.prpubid = publication.oid and to_jsonb(member) ->> 'prqual' is not null
        order by 1
    ) as filtered
from pg_catalog.pg_publication publication
cross join lateral (
    select array_agg(listed.schema) as schemas, array_agg(listed.name) as names
    from (
        select schemaname::text as schema, tablename::text as name
        from pg_catalog.pg_publication_tables
        where pubname = publication.pubname
        union
        -- Also the tables as they were added: the view lists partitions in place of a partitioned table.
        select namespace.nspname::text, class.relname::text
        from pg_catalog.pg_publication_rel member
        join pg_catalog.pg_class class on class.oid = member.prrelid
        join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
        where member.prpubid = publication.oid
    ) listed
) tables
where publication.pubname = $1
