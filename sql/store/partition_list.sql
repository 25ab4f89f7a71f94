-- The partitions of a table. $1 its name
select child.relname
from pg_catalog.pg_inherits inherits
join pg_catalog.pg_class child on child.oid = inherits.inhrelid
where inherits.inhparent = ('walhook.' || $1::text)::regclass
