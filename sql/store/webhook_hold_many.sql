-- $1 webhooks: those that exist. While they are held, nobody deletes them.
select id from walhook.webhook where id = any ($1::uuid[]) order by id for key share
