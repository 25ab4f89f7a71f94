-- $1 id, $2 the encrypted response, $3 the id of the master key
update walhook.idempotency
set answer = $2, key_id = $3
where id = $1
