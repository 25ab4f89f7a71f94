-- $1 the longest life and $2 the longest idle time, in seconds. Also removes sessions whose token was revoked.
delete from walhook.session
where created_at <= now() - make_interval(secs => $1)
   or used_at <= now() - make_interval(secs => $2)
   or exists (select from walhook.api_token where id = session.token_id and revoked_at is not null)
