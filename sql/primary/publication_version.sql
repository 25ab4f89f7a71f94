-- Identifies the definition of a publication: another text when its options change, or the tables and schemas in it. $1 its name
select publication.xmin::text || ' ' || coalesce(
    string_agg(format('%s:%s', member.classid, member.objid), ' ' order by member.classid, member.objid), ''
)
from pg_catalog.pg_publication publication
-- Members of every kind, of which PostgreSQL 14 has only one.
left join pg_catalog.pg_depend member
    on member.refclassid = 'pg_catalog.pg_publication'::regclass and member.refobjid = publication.oid
where publication.pubname = $1
group by publication.xmin::text
