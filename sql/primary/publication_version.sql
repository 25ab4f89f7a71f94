-- Identifies what a publication streams: another text when its options change, the tables and schemas in it, the tables that have the
-- given names, or their partitions. No row if it does not exist. Also the server's timeline, in hexadecimal digits. $1 the publication's
-- name, $2 names of tables, quoted
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
