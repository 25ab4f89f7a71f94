-- Kept answers that are not encrypted under the key $1, behind the id $2, $3 at most
select id, answer as sealed, key_id
from walhook.idempotency
where id > $2 and key_id <> $1
order by id
limit $3
