-- Custom headers that are encrypted under other keys than $1, of webhooks after the id $2, at most $3
select id, headers as sealed, headers_key_id as key_id
from walhook.webhook
where id > $2 and headers is not null and headers_key_id <> $1
order by id
limit $3
