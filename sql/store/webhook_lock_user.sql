-- Serializes the creation of a user's webhooks, so that the limit holds. $1 user
select pg_advisory_xact_lock(hashtextextended('walhook webhooks of ' || $1::text, 0))
