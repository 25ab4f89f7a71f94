-- $1 user, $2 the limit of keys per user
select count(*) >= $2 from (select from walhook.idempotency where user_id = $1 limit $2) as kept
