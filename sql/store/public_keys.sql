-- The public keys that verify signatures, in their own order, which reveals nothing about webhooks.
-- $1 the key after which to start, $2 how many at most
select public_key, expires_at
from (
    select public_key, null::timestamptz as expires_at from walhook.webhook
    union all
    select previous_public_key, previous_expires_at from walhook.webhook where previous_expires_at > now()
) as keys
where public_key > $1::bytea
order by public_key
limit $2::bigint
