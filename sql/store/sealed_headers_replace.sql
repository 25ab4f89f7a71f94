-- Replaces a webhook's encrypted custom headers, unless they were changed in the meantime.
-- $1 webhook, $2 the old value, $3 the new value, $4 its key
update walhook.webhook
set headers = $3, headers_key_id = $4
where id = $1 and headers = $2
