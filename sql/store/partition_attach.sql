-- Unlike `create table ... partition of`, this does not block reads and writes of the table, except of its default partition.
alter table walhook.{table} attach partition walhook.{name} for values from ('{from}') to ('{to}')
