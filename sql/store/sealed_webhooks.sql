-- Secrets that are not encrypted under the key $1, of webhooks behind the id $2, $3 at most
select id, secret as sealed, secret_key_id as key_id
from walhook.webhook
where id > $2 and secret_key_id <> $1
order by id
limit $3
