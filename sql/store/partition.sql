-- name: missing_indexes
-- Indexes that a migration created on a partitioned table alone, and the partitions that lack them.
-- The newest first: their rows are read most. The parent's own `indisvalid` is not reliable: it
-- stays false if the last partition without the index was dropped.
select parent_table.relname as "table", partition.relname as partition, parent.relname as parent,
    substring(pg_get_indexdef(parent.oid) from ' (USING .*)$') as definition
from pg_catalog.pg_index as parent_index
join pg_catalog.pg_class as parent on parent.oid = parent_index.indexrelid
join pg_catalog.pg_class as parent_table on parent_table.oid = parent_index.indrelid
join pg_catalog.pg_inherits as inherits on inherits.inhparent = parent_table.oid
join pg_catalog.pg_class as partition on partition.oid = inherits.inhrelid
where parent_table.relkind = 'p'
  and parent_table.relnamespace = 'walhook'::regnamespace
  and not exists (
      select from pg_catalog.pg_inherits as attached
      join pg_catalog.pg_index as own on own.indexrelid = attached.inhrelid
      where attached.inhparent = parent.oid and own.indrelid = partition.oid and own.indisvalid
  )
order by partition.relname desc, parent.relname

-- name: attach
-- Unlike `create table ... partition of`, this does not block reads and writes of the table, except
-- of its default partition.
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
