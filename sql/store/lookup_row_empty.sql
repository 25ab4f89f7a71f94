-- $1 tables that were truncated
delete from walhook.lookup_row where relation = any($1::smallint[])
