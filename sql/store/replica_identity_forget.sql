delete from walhook.replica_identity
