-- name: size
-- The size of a table without its indexes. Null if it is gone. $1 its oid
select pg_relation_size($1) as size

-- name: find
-- Tables, each followed by its partitions and by the tables that inherit from it. `number` is the
-- table's index in the parameters, counted from one. $1 schemas, $2 tables, $3 the name of
-- Walhook's identity index on each, $4 its publication
with recursive wanted as (
    select class.oid as root, wanted.number, wanted.index
    from unnest($1::text[], $2::text[], $3::text[]) with ordinality as wanted (schema, name, index, number)
    join pg_catalog.pg_namespace namespace on namespace.nspname = wanted.schema
    join pg_catalog.pg_class class
        on class.relnamespace = namespace.oid and class.relname = wanted.name and class.relkind in ('r', 'p')
), tree as (
    select number, index, root, root as oid from wanted
    union
    select tree.number, tree.index, tree.root, child.inhrelid
    from tree join pg_catalog.pg_inherits child on child.inhparent = tree.oid
), relation as materialized (
    -- Materialized, or the columns of every relation in the database would be read if its
    -- statistics say that it has many partitions.
    select tree.number, tree.index, tree.root, class.*
    from tree join pg_catalog.pg_class class on class.oid = tree.oid
), formatted as (
    -- The types with their own cast to text, which may differ from their output function. The WAL
    -- has the output of that function. character(n) is excluded: its cast only drops the padding.
    select castsource as type
    from pg_catalog.pg_cast
    where casttarget = 'text'::regtype and castmethod = 'f' and castsource <> 'bpchar'::regtype
    union
    -- A domain has the output and the casts of its base type.
    select domain.oid
    from formatted join pg_catalog.pg_type domain on domain.typbasetype = formatted.type and domain.typtype = 'd'
), list as (
    -- Other publications with lists of columns, which exist since PostgreSQL 15
    select
        member.prrelid as relation,
        publication.pubname::text as publication,
        array(
            select attribute.attname
            from pg_catalog.pg_attribute attribute
            where attribute.attrelid = member.prrelid and to_jsonb(member) -> 'prattrs' @> to_jsonb(attribute.attnum)
        ) as columns
    from pg_catalog.pg_publication_rel member
    join pg_catalog.pg_publication publication on publication.oid = member.prpubid
    where publication.pubname <> $4::text and to_jsonb(member) ->> 'prattrs' is not null
)
select
    class.number,
    class.oid,
    namespace.nspname::text as schema,
    class.relname::text as name,
    class.relkind = 'p' as has_partitions,
    class.relkind = 'p' or class.relispartition as partitioned,
    class.oid <> class.root and class.relispartition as is_partition,
    pg_has_role(class.relowner, 'usage') as owned,
    pg_get_userbyid(class.relowner)::text as owner,
    has_schema_privilege(namespace.oid, 'usage') as usable,
    -- The role pg_database_owner has one member, the database's owner.
    pg_get_userbyid(
        case when namespace.nspowner = to_regrole('pg_database_owner') then database.datdba else namespace.nspowner end
    )::text as schema_owner,
    -- Null for a table that was dropped since the snapshot.
    has_schema_privilege(namespace.oid, 'usage')
        and coalesce(has_table_privilege(class.oid, 'trigger'), false) as may_trigger,
    -- A policy can show every row, if no restrictive one hides it again.
    row_security_active(class.oid) and not exists (
        select from pg_catalog.pg_policy policy
        where policy.polrelid = class.oid and policy.polcmd in ('r', '*')
            and exists (select from unnest(policy.polroles) grantee where grantee = 0 or pg_has_role(grantee, 'usage'))
        having bool_and(policy.polpermissive) and bool_or(pg_get_expr(policy.polqual, class.oid) = 'true')
    ) as row_security,
    class.relreplident::text as identity,
    identity.name as identity_index,
    coalesce(identity.columns, '{}') as identity_columns,
    own_index.name as own_index,
    own_index.indisvalid as own_index_valid,
    columns.names as columns,
    columns.types,
    columns.categories,
    columns.formatted,
    columns.generated,
    columns.virtual as virtual_columns,
    columns.not_null,
    case when columns.generated = '{}' then '{}' else array(
        select publication.pubname::text
        from pg_catalog.pg_publication publication
        join pg_catalog.pg_publication_tables published on published.pubname = publication.pubname
        -- The column exists since PostgreSQL 18.
        where publication.pubname <> $4::text and coalesce(to_jsonb(publication) ->> 'pubgencols', 's') <> 's'
            and published.schemaname = namespace.nspname and published.tablename = class.relname
        order by 1
    ) end as published_without_generated,
    array(select publication from list where relation in (class.oid, class.root) order by 1) as partly_published_by,
    array(
        select attribute.attname::text
        from pg_catalog.pg_attribute attribute
        where attribute.attrelid = class.oid and attribute.attnum > 0 and not attribute.attisdropped and exists (
            select from list where relation in (class.oid, class.root) and not attribute.attname = any(list.columns)
        )
    ) as unpublished_columns,
    columns.readable
from relation class
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
join pg_catalog.pg_database database on database.datname = current_database()
left join lateral (
    select index_class.relname::text as name, array_agg(attribute.attname::text) as columns
    from pg_catalog.pg_index index
    join pg_catalog.pg_class index_class on index_class.oid = index.indexrelid
    join pg_catalog.pg_attribute attribute
        on attribute.attrelid = index.indrelid and attribute.attnum = any((index.indkey::int2[])[0:index.indnkeyatts - 1])
    where index.indrelid = class.oid
        and ((class.relreplident = 'd' and index.indisprimary) or (class.relreplident = 'i' and index.indisreplident))
    group by index_class.relname
) identity on true
cross join lateral (
    select wanted.name, (
        select index.indisvalid
        from pg_catalog.pg_index index
        join pg_catalog.pg_class index_class on index_class.oid = index.indexrelid
        where index.indrelid = class.oid and index_class.relname = wanted.name
    ) as indisvalid
    -- The names of indexes are unique in a schema, which tables that inherit can share with the
    -- table.
    from (select class.index || case when class.oid = class.root then '' else '_' || class.oid end as name) wanted
) own_index
cross join lateral (
    select
        coalesce(array_agg(attribute.attname::text order by attribute.attnum), '{}') as names,
        coalesce(array_agg(format_type(attribute.atttypid, null) order by attribute.attnum), '{}') as types,
        coalesce(array_agg(type.typcategory::text order by attribute.attnum), '{}') as categories,
        coalesce(array_agg(type.oid in (select formatted.type from formatted) order by attribute.attnum), '{}') as formatted,
        coalesce(array_agg(attribute.attname::text) filter (where attribute.attgenerated <> ''), '{}') as generated,
        coalesce(array_agg(attribute.attname::text) filter (where attribute.attgenerated = 'v'), '{}') as virtual,
        coalesce(array_agg(attribute.attname::text) filter (where attribute.attnotnull), '{}') as not_null,
        coalesce(array_agg(attribute.attname::text) filter (
            where has_schema_privilege(namespace.oid, 'usage')
                and has_column_privilege(class.oid, attribute.attnum, 'select')
        ), '{}') as readable
    from pg_catalog.pg_attribute attribute
    join pg_catalog.pg_type type on type.oid = attribute.atttypid
    where attribute.attrelid = class.oid and attribute.attnum > 0 and not attribute.attisdropped
) columns
order by class.number, class.oid <> class.root, class.oid

-- name: granted
-- What the role was granted, as setup prints it, with statements that revoke it. `is_own` are those
-- that only Walhook needs: the others may serve another program that shares the role.
with relation as (
    select class.oid, class.relacl as acl, format('%I.%I', namespace.nspname, class.relname) as name,
        pg_get_userbyid(class.relowner)::text as owner
    from pg_catalog.pg_class class
    join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
    where class.relkind in ('r', 'p', 'v', 'm', 'f') and not pg_has_role(class.relowner, 'usage')
        and namespace.nspname not in ('pg_catalog', 'information_schema')
), role as (
    select oid, quote_ident(rolname) as name from pg_catalog.pg_roles where rolname = current_user
), revoked as (
    select relation.owner as by, true as is_own, format(
        'revoke select (%s) on %s from %s;',
        string_agg(quote_ident(attribute.attname), ', ' order by attribute.attnum), relation.name, role.name
    ) as sql
    from relation
    join pg_catalog.pg_attribute attribute on attribute.attrelid = relation.oid and not attribute.attisdropped
    cross join lateral aclexplode(attribute.attacl) granted
    join role on role.oid = granted.grantee
    where granted.privilege_type = 'SELECT'
    group by relation.owner, relation.name, role.name
    union all
    select relation.owner, true, format('drop policy walhook on %s;', relation.name)
    from relation
    join pg_catalog.pg_policy policy on policy.polrelid = relation.oid and policy.polname = 'walhook'
    union all
    select relation.owner, false, format('revoke %s on %s from %s;', lower(granted.privilege_type), relation.name, role.name)
    from relation
    cross join lateral aclexplode(relation.acl) granted
    join role on role.oid = granted.grantee
    where granted.privilege_type in ('SELECT', 'TRIGGER')
    union all
    select pg_get_userbyid(namespace.nspowner)::text, false, format('revoke usage on schema %I from %s;', namespace.nspname, role.name)
    from pg_catalog.pg_namespace namespace
    cross join lateral aclexplode(namespace.nspacl) granted
    join role on role.oid = granted.grantee
    where granted.privilege_type = 'USAGE' and not pg_has_role(namespace.nspowner, 'usage')
    union all
    select pg_get_userbyid(database.datdba)::text, false, format('revoke create on database %I from %s;', database.datname, role.name)
    from pg_catalog.pg_database database
    cross join lateral aclexplode(database.datacl) granted
    join role on role.oid = granted.grantee
    where granted.privilege_type = 'CREATE' and database.datname = current_database() and not pg_has_role(database.datdba, 'usage')
)
select by, is_own, sql from revoked order by by, sql
