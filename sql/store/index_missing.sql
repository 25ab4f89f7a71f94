-- Indexes that a migration created on a partitioned table alone, and the partitions that lack them. The newest first: their rows are read
-- most. The parent's own `indisvalid` is not reliable: it stays false if the last partition without the index was dropped.
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
