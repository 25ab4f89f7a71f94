-- Returns those of these sessions that have not ended. An open stream does not prolong its session.
-- $1 hashes, $2 the longest life and $3 the longest idle time, in seconds
select session.hash
from walhook.session
where session.hash = any ($1::bytea[])
  and session.created_at > now() - make_interval(secs => $2)
  and session.used_at > now() - make_interval(secs => $3)
  and (session.token_id is null
       or exists (select from walhook.api_token where id = session.token_id and revoked_at is null))
