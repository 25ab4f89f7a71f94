-- $1 hash, $2 webhook. No row if the session may not show the secret.
select webhook.secret, webhook.secret_key_id
from walhook.session
join walhook.webhook on webhook.id = session.reveals and webhook.user_id = session.user_id
where session.hash = $1 and session.reveals = $2 and session.reveals_until > now()
