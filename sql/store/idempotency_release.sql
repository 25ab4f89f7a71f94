-- $1 id of a claim without an answer: the key can be used again at once
delete from walhook.idempotency
where id = $1 and answer is null
