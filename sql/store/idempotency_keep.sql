-- $1 id, $2 the encrypted answer, $3 the key it is encrypted with
update walhook.idempotency
set answer = $2, key_id = $3
where id = $1
