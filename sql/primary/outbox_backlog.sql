-- The number of rows in the outbox, counted up to a limit, and the age of the oldest
select count(*) as rows, coalesce(extract(epoch from clock_timestamp() - min(at)), 0)::double precision as age
from (select at from walhook_capture.outbox order by seq limit 100000) waiting
