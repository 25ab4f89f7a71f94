-- $1 hash, $2 the longest life and $3 the longest idle time, in seconds. `stale` sessions need a new time of use.
select session.user_id, session.token_id, session.used_at < now() - interval '1 minute' as stale
from walhook.session
where session.hash = $1
  and session.created_at > now() - make_interval(secs => $2)
  and session.used_at > now() - make_interval(secs => $3)
  and (session.token_id is null
       or exists (select from walhook.api_token where id = session.token_id and revoked_at is null))
