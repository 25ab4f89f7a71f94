-- $1 user, $2 hash of the key
select id, fingerprint, answer, key_id
from walhook.idempotency
where user_id = $1 and key_hash = $2
