-- Makes changes of the triggers consecutive: one transaction at a time creates or drops them.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('walhook triggers', 0))
