-- $1 id, $2 user, $3 via, $4 API token of the request, $5 action, $6 webhook or token, $7 names of changed fields
insert into walhook.audit (id, user_id, via, token_id, action, subject_id, changed)
values ($1, $2, $3, $4, $5, $6, $7)
