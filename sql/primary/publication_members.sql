-- What a publication streams of the tables that events need, as numbers: a number that differs, or is null, shows that something was not
-- streamed in between. Rows: each table, each of its partitions, and the options of the publication. $1 the publication, $2 schemas,
-- $3 tables
with wanted as (
    select wanted.schema || '.' || wanted.name as name, namespace.oid as schema, class.oid as relation, class.relkind as kind
    from unnest($2::text[], $3::text[]) as wanted (schema, name)
    left join pg_catalog.pg_namespace namespace on namespace.nspname = wanted.schema
    left join pg_catalog.pg_class class on class.relnamespace = namespace.oid and class.relname = wanted.name
), publication as (
    select oid, xmin, puballtables as all_tables from pg_catalog.pg_publication where pubname = $1
), of_schemas as (
    -- The catalog of these memberships exists since PostgreSQL 15. Their dependencies can be queried on every version.
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
        -- The schema's, or the publication itself. A table that takes the name of another one is another member.
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
