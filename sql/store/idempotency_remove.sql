-- Responses are stored for 24 hours.
delete from walhook.idempotency
where claimed_at < now() - interval '24 hours'
