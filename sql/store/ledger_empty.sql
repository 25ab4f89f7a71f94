-- $1 tables that were truncated
delete from walhook.last_seen where relation = any($1::smallint[])
