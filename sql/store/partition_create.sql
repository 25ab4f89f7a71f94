-- One day of a table: ids begin with their time. {name} and the bounds are made by us of digits alone.
create table if not exists walhook.{name} partition of walhook.{table} for values from ('{from}') to ('{to}')
