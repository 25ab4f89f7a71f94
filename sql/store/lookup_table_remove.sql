-- $1 tables. Their rows no longer follow the stream
delete from walhook.lookup_table where relation = any($1::smallint[])
