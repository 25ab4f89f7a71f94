-- $1 user, $2 how many sessions to keep, newest first
delete from walhook.session
where hash in (select hash from walhook.session where user_id = $1 order by created_at desc, hash offset $2)
