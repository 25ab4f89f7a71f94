-- Marks the switch to triggers in the WAL: earlier changes are read from the WAL, later ones from the outbox.
select pg_catalog.pg_logical_emit_message(true, 'walhook', 'handover');
