-- $1 the id of a claim without a response
delete from walhook.idempotency
where id = $1 and answer is null
