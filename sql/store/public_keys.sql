-- The public keys that verify signatures, in their own order, which reveals nothing about webhooks. $1 how many at most
select id, public_key, expires_at
from (
    select id, public_key, null::timestamptz as expires_at from walhook.webhook where public_key is not null
    union all
    select id, previous_public_key, previous_expires_at
    from walhook.webhook
    where previous_public_key is not null and previous_expires_at > now()
) as keys
order by public_key
limit $1::bigint
