-- $1 webhook
select ordering from walhook.webhook where id = $1
