-- Counts at most $1 events
select count(*) as events, min(recorded_at) as oldest, mode() within group (order by reason) as reason
from (select recorded_at, reason from walhook.unrouted_event order by id limit $1) as first
