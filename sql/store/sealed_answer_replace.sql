-- Replaces an encrypted answer, unless it is that of another request by now.
-- $1 id, $2 the old value, $3 the new value, $4 its key
update walhook.idempotency
set answer = $3, key_id = $4
where id = $1 and answer = $2
