-- $1 user. Serializes the creations of one user's webhooks, so that they cannot exceed the limit.
select pg_advisory_xact_lock(hashtextextended('walhook webhooks of ' || $1::text, 0))
