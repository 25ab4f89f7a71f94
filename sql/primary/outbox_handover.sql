-- The log is read up to here, the outbox from here on.
select pg_catalog.pg_logical_emit_message(true, 'walhook', 'handover');
