-- How much is waiting, up to a limit that is worth counting, and since when
select count(*) as rows, coalesce(extract(epoch from clock_timestamp() - min(at)), 0)::double precision as age
from (select at from walhook_capture.outbox order by seq limit 100000) waiting
