-- Removes rows from the default partition that are too old. {id} is the column that the table is partitioned by.
-- $1 the lowest id to keep, $2 rows at most
delete from walhook.{table}_default
where ctid = any (array(select ctid from walhook.{table}_default where {id} < $1 limit $2))
