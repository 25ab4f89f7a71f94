-- Ends a notice regardless of its lease: a notice that was sent must not be sent again.
-- $1 id, $2 outcome
update walhook.notice set ended_at = now(), outcome = $2, lease = null
where id = $1 and ended_at is null
