-- $1 the retention period in days
delete from walhook.audit
where at < now() - make_interval(days => $1::int)
