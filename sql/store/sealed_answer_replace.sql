-- $1 id, $2 the answer as it was encrypted, $3 as it is now, $4 the key it is encrypted with. Not one of another request by now
update walhook.idempotency
set answer = $3, key_id = $4
where id = $1 and answer = $2
