-- Allows one repair of a slot at a time. Assigns no transaction id, for which the creation of a slot would wait. $1 slot
select pg_try_advisory_xact_lock(hashtextextended('walhook repair ' || $1, 0))
