-- The tables to which a row was ever written, even if it was deleted since. $1 OIDs
select distinct oid from unnest($1::oid[]) oid where pg_relation_size(oid) > 0
