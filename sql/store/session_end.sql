-- $1 hash
delete from walhook.session where hash = $1
