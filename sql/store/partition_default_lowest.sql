-- The lowest id in the default partition: its day has no partition. {id} is the column that the table is partitioned by.
-- $1 the lowest id to consider
select {id} as id from walhook.{table}_default where {id} >= $1 order by {id} limit 1
