-- The public keys that verify the signatures of one webhook, the newest first. $1 webhook
select public_key, null::timestamptz as expires_at
from walhook.webhook
where id = $1::uuid and public_key is not null
union all
select previous_public_key, previous_expires_at
from walhook.webhook
where id = $1 and previous_public_key is not null and previous_expires_at > now()
order by expires_at nulls first
