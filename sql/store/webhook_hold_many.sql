-- Locks webhooks against deletion and returns those that exist. $1 webhooks
select id from walhook.webhook where id = any ($1::uuid[]) order by id for key share
