-- The number of rows in the outbox, counted up to a limit, and the age of the oldest. $1 the row after which to start, so that deleted
-- rows are not scanned
select count(*) as rows, coalesce(extract(epoch from clock_timestamp() - min(at)), 0)::double precision as age
from (select at from walhook_capture.outbox where seq > $1 order by seq limit 100000) waiting
