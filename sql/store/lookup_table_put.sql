-- $1 table, $2 its mapping
insert into walhook.lookup_table (relation, mapping) values ($1, $2)
