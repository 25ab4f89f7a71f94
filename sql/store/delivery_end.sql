-- $1 ids
delete from walhook.delivery where id = any ($1::uuid[])
