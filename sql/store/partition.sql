-- name: attach
-- Unlike `create table ... partition of`, this locks only the default partition against reads and
-- writes.
alter table walhook.{table} attach partition walhook.{name} for values from ('{from}') to ('{to}')

-- name: default_expire
-- Removes rows from the default partition that are too old. {id} is the column that the table is
-- partitioned by. $1 the lowest id to keep, $2 rows at most
delete from walhook.{table}_default
where ctid = any (array(select ctid from walhook.{table}_default where {id} < $1 limit $2))

-- name: default_lowest
-- The lowest id in the default partition: its day has no partition. {id} is the column that the
-- table is partitioned by. $1 the lowest id to consider
select {id} as id from walhook.{table}_default where {id} >= $1 order by {id} limit 1

-- name: fill
-- Moves a day's rows from the default partition into the day's own. {id} is the column that the
-- table is partitioned by; the bounds consist of digits.
with moved as (
    delete from walhook.{table}_default where {id} >= '{from}' and {id} < '{to}' returning *
)
insert into walhook.{name} select * from moved

-- name: list
-- The partitions of a table. $1 its name
select child.relname
from pg_catalog.pg_inherits inherits
join pg_catalog.pg_class child on child.oid = inherits.inhrelid
where inherits.inhparent = ('walhook.' || $1::text)::regclass

-- name: make
-- Creates a day's partition without attaching it. {name} and {table} are no user input.
create table walhook.{name} (like walhook.{table} including all)
