-- $1 oid
delete from walhook.replica_identity where table_oid = $1
