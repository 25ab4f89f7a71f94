-- Other than `create table … partition of`, this lets everybody read and write the table meanwhile, but for its default partition.
alter table walhook.{table} attach partition walhook.{name} for values from ('{from}') to ('{to}')
