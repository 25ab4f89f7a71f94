-- $1 hash
update walhook.session set used_at = now() where hash = $1
