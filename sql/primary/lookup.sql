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

-- name: extra
-- A key and its value for a JSON object, in the form in which Walhook reads it from the WAL. Beside
-- another argument, a domain counts as its base type.
{key}, case
    when pg_typeof(coalesce({value}, null))
        in ('bool'::regtype, 'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'float4'::regtype, 'float8'::regtype, 'numeric'::regtype)
    then to_json({value})
    else to_json(left({value}::text, {characters}))
end

-- name: rows
-- The rows of one table for a set of keys. Values are text, as in the stream. $1 keys as text
select {columns}
from {table} as this
where this.{key} = any(($1::text[])::{key_type}[]) and {condition}

-- name: newest
-- The rows with the highest ids, which an index finds. $1 how many
select {columns}
from {table} as this
where {condition}
order by this.{key} desc
limit $1

-- name: unreadable
-- Grants on the columns that SQL of the platform names and that the role may not read: of relations
-- named with their schemas, or after `from`, `join` or a comma if the role searches their schemas.
-- Of a relation of which all columns are selected, or that the server still refuses although the
-- named columns can be read, all. $1 the texts, $2 the server's errors
with text as (
    -- Without comments and the contents of strings
    select regexp_replace(text, $re$'[^']*'|--[^\n]*|/\*([^*]|\*+[^*/])*\*+/$re$, ' ', 'g') as text, error
    from unnest($1::text[], $2::text[]) as given (text, error)
), relation as (
    select
        class.oid,
        namespace.oid as schema,
        format('%I.%I', namespace.nspname, class.relname) as name,
        pg_get_userbyid(class.relowner)::text as owner,
        namespace.nspname,
        class.relname,
        -- The role pg_database_owner has one member, the database's owner.
        pg_get_userbyid(
            case when namespace.nspowner = to_regrole('pg_database_owner') then database.datdba else namespace.nspowner end
        )::text as schema_owner,
        namespace.nspname = any(
            string_to_array(replace(replace(current_setting('search_path'), '"', ''), '$user', current_user), ', ')
        ) as is_searched,
        '"?' || regexp_replace(replace(namespace.nspname, '"', '""'), '(\W)', '\\\1', 'g') || '"?\s*\.\s*' as schema_pattern,
        '"?' || regexp_replace(replace(class.relname, '"', '""'), '(\W)', '\\\1', 'g') || '"?(?![\w$"])' as pattern
    from pg_catalog.pg_class class
    join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
    join pg_catalog.pg_database database on database.datname = current_database()
    where class.relkind in ('r', 'p', 'v', 'm', 'f') and not (
        has_schema_privilege(namespace.oid, 'usage') and coalesce(has_table_privilege(class.oid, 'select'), true)
    )
), named as (
    select relation.*, text.text, text.error
    from relation
    join text
        on text.text ~* ('(^|[^\w$".])' || relation.schema_pattern || relation.pattern)
        or (relation.is_searched and text.text ~* ('(\mfrom|\mjoin|,)\s*(only\s+)?' || relation.pattern || '(?!\s*\.)'))
), lacking as (
    select
        named.*,
        array(
            select attribute.attname
            from pg_catalog.pg_attribute attribute
            where attribute.attrelid = named.oid and attribute.attnum > 0 and not attribute.attisdropped
                and not has_column_privilege(named.oid, attribute.attnum, 'select')
                and named.text ~* (
                    '(^|[^\w$":])"?' || regexp_replace(replace(attribute.attname, '"', '""'), '(\W)', '\\\1', 'g')
                    || '"?(?![\w$"]|\s*\()'
                )
            order by attribute.attnum
        ) as columns
    from named
), granted as (
    select
        lacking.*,
        case
            when text ~* '(\mselect|[.,])\s*\*' or (columns = '{}' and error ~ ('\m' || regexp_replace(relname, '(\W)', '\\\1', 'g') || '\M'))
                then 'select'
            when columns <> '{}' then 'select (' || (select string_agg(quote_ident(name), ', ') from unnest(columns) as name) || ')'
        end as privilege
    from lacking
)
select schema_owner as by, format('grant usage on schema %I to %I;', nspname, current_user) as sql, 1 as step, '' as name
from granted where not has_schema_privilege(schema, 'usage')
union
select owner, format('grant %s on %s to %I;', privilege, name, current_user), 2, name from granted where privilege is not null
order by step, name, sql
