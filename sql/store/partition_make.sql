-- Creates a day's partition without attaching it. {name} and {table} are no user input.
create table walhook.{name} (like walhook.{table} including all)
