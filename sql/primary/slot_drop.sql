-- $1 the slot's name
select pg_drop_replication_slot($1)
