-- What is older than any answer is kept.
delete from walhook.idempotency
where claimed_at < now() - interval '24 hours'
