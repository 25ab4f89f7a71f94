-- One repair of a slot at a time. It takes no transaction number, which the making of a slot would wait for. $1 slot
select pg_try_advisory_xact_lock(hashtextextended('walhook repair ' || $1, 0))
