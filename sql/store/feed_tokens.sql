-- Returns those of these API tokens that are valid. $1 ids
select id from walhook.api_token where id = any ($1) and revoked_at is null
