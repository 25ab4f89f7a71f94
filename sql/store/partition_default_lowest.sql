-- The lowest id in the default partition, from a given one on: its day has no partition of its own. {id} is the column that the table is
-- partitioned by. $1 the lowest id to look at
select {id} as id from walhook.{table}_default where {id} >= $1 order by {id} limit 1
