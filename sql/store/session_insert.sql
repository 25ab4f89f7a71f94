-- $1 hash, $2 user, $3 the API token
insert into walhook.session (hash, user_id, token_id) values ($1, $2, $3)
