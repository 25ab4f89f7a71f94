-- Moves a day's rows from the default partition into the day's own. {id} is the column that the table is partitioned by; the bounds
-- consist of digits.
with moved as (
    delete from walhook.{table}_default where {id} >= '{from}' and {id} < '{to}' returning *
)
insert into walhook.{name} select * from moved
