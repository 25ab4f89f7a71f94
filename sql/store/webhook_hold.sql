-- $1 webhook: while it is held, nobody deletes it
select id from walhook.webhook where id = $1 for key share
