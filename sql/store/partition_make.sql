-- One day of a table, not attached yet: ids begin with their time. {name} and {table} are made by us.
create table walhook.{name} (like walhook.{table} including all)
