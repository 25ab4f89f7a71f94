-- Replaces an encrypted response, unless another request has claimed the key in the meantime.
-- $1 id, $2 the old value, $3 the new value, $4 its key
update walhook.idempotency
set answer = $3, key_id = $4
where id = $1 and answer = $2
