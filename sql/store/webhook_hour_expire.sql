-- $1 the oldest hour to keep
delete from walhook.webhook_hour where hour < $1
