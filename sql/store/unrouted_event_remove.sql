-- $1 ids
delete from walhook.unrouted_event where id = any($1::uuid[])
