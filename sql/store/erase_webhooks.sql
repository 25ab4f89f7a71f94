-- $1 user. In order of id, as everybody locks.
delete from walhook.webhook where user_id = $1 returning id
