-- How many values are encrypted under each key
select key_id, count(*)
from (
    select secret_key_id as key_id from walhook.webhook
    union all
    select headers_key_id from walhook.webhook where headers_key_id is not null
    union all
    select private_key_key_id from walhook.webhook where private_key_key_id is not null
    union all
    select previous_secret_key_id from walhook.webhook where previous_secret_key_id is not null
    union all
    select previous_private_key_key_id from walhook.webhook where previous_private_key_key_id is not null
    union all
    select key_id from walhook.idempotency where key_id is not null
) sealed
group by key_id
order by key_id
