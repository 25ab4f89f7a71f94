-- name: find
-- A publication and the tables that it publishes. $1 its name
select
    publication.puballtables as all_tables,
    publication.pubinsert and publication.pubupdate and publication.pubdelete and publication.pubtruncate as all_operations,
    publication.pubviaroot as via_root,
    -- The column exists since PostgreSQL 18.
    coalesce(to_jsonb(publication) ->> 'pubgencols', 's') = 's' as stored_generated,
    pg_has_role(publication.pubowner, 'usage') as owned,
    pg_get_userbyid(publication.pubowner)::text as owner,
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
        -- Also the tables as they were added: the view lists partitions in place of a partitioned
        -- table.
        select namespace.nspname::text, class.relname::text
        from pg_catalog.pg_publication_rel member
        join pg_catalog.pg_class class on class.oid = member.prrelid
        join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
        where member.prpubid = publication.oid
    ) listed
) tables
where publication.pubname = $1

-- name: add
alter publication {publication} add table {tables};

-- name: create
create publication {publication} for table {tables}
    with (publish = 'insert, update, delete, truncate', publish_via_partition_root = true{generated});

-- name: drop
drop publication if exists {publication};

-- name: members
-- What a publication streams of the tables that events need, as numbers: a number that differs, or
-- is null, shows that something was not streamed in between. Rows: each table, each of its
-- partitions, and the options of the publication. $1 the publication, $2 schemas, $3 tables
with wanted as (
    select wanted.schema || '.' || wanted.name as name, namespace.oid as schema, class.oid as relation, class.relkind as kind
    from unnest($2::text[], $3::text[]) as wanted (schema, name)
    left join pg_catalog.pg_namespace namespace on namespace.nspname = wanted.schema
    left join pg_catalog.pg_class class on class.relnamespace = namespace.oid and class.relname = wanted.name
), publication as (
    select oid, xmin, puballtables as all_tables from pg_catalog.pg_publication where pubname = $1
), of_schemas as (
    -- The catalog of these memberships exists since PostgreSQL 15. Their dependencies can be
    -- queried on every version.
    select schema.refobjid as schema, member.objid as member
    from publication
    join pg_catalog.pg_depend member
        on member.refclassid = 'pg_catalog.pg_publication'::regclass and member.refobjid = publication.oid
        and member.classid = to_regclass('pg_catalog.pg_publication_namespace')
    join pg_catalog.pg_depend schema
        on schema.classid = member.classid and schema.objid = member.objid
        and schema.refclassid = 'pg_catalog.pg_namespace'::regclass
), members as (
    select wanted.name, coalesce(
        -- The table's own membership.
        (select oid from pg_catalog.pg_publication_rel where prpubid = publication.oid and prrelid = wanted.relation),
        -- The schema's, or the publication itself. A table that takes the name of another one is
        -- another member.
        (hashint8(
            coalesce(of_schemas.member, case when publication.all_tables then publication.oid end)::bigint << 32
            | wanted.relation::bigint
        )::bigint & 4294967295)::oid
    ) as number
    from wanted
    left join publication on true
    left join of_schemas on of_schemas.schema = wanted.schema
), partitions as (
    select partition.inhrelid::regclass::text as name, partition.xmin::text::bigint::oid as number
    from wanted, pg_catalog.pg_partition_tree(wanted.relation) as tree
    join pg_catalog.pg_inherits partition on partition.inhrelid = tree.relid
    where wanted.kind = 'p'
), numbered as (
    select name, number from members
    union all
    select 'partition ' || name, number from partitions
    union all
    select 'options', xmin::text::bigint::oid from publication
)
select name, number from numbered

-- name: set_options
alter publication {publication}
    set (publish = 'insert, update, delete, truncate', publish_via_partition_root = true{generated});

-- name: version
-- Identifies what a publication streams: another text when its options change, the tables and
-- schemas in it, the tables that have the given names, or their partitions. No row if it does not
-- exist. Also the server's timeline, in hexadecimal digits. $1 the publication's name, $2 names of
-- tables, quoted
with named as materialized (
    select array(select to_regclass(name)::oid from unnest($2::text[]) as name) as relations
)
select
    concat_ws(
        ' ',
        publication.xmin,
        named.relations::text,
        -- Members of every kind, of which PostgreSQL 14 has only one.
        (
            select string_agg(member.classid || ':' || member.objid, ' ' order by member.classid, member.objid)
            from pg_catalog.pg_depend member
            where member.refclassid = 'pg_catalog.pg_publication'::regclass and member.refobjid = publication.oid
        ),
        (
            select string_agg(partition.inhrelid || ':' || partition.xmin, ' ' order by partition.inhrelid)
            from pg_catalog.pg_inherits partition
            where partition.inhparent = any(named.relations)
        )
    ) as version,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline
from pg_catalog.pg_publication publication, named
where publication.pubname = $1
