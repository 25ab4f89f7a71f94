-- $1 how many days are kept
delete from walhook.audit
where at < now() - make_interval(days => $1::int)
