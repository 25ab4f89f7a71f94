-- Drops the slot. $1 its name
select pg_drop_replication_slot($1)
