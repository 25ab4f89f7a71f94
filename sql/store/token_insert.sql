-- $1 id, $2 user, $3 name, $4 hash
insert into walhook.api_token (id, user_id, name, hash)
values ($1, $2, $3, $4)
