-- $1 id; the first revocation's time stays
update walhook.api_token
set revoked_at = coalesce(revoked_at, now())
where id = $1
