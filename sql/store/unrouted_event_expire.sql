-- $1 days, $2 events at most
delete from walhook.unrouted_event
where id in (
    select id from walhook.unrouted_event where recorded_at < now() - make_interval(days => $1) order by recorded_at limit $2
)
