-- The size of a table without its indexes. Null if it is gone. $1 its oid
select pg_relation_size($1) as size
