-- Stored responses that are encrypted under other keys than $1, after the id $2, at most $3
select id, answer as sealed, key_id
from walhook.idempotency
where id > $2 and key_id <> $1
order by id
limit $3
