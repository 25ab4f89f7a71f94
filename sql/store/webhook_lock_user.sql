-- $1 user: creations of one user's webhooks take turns until the transaction ends, so that the limit holds
select pg_advisory_xact_lock(hashtextextended('walhook webhooks of ' || $1::text, 0))
