-- $1 webhook, $2 rows at most
delete from walhook.webhook_hour
where webhook_id = $1
    and hour = any (array(select hour from walhook.webhook_hour where webhook_id = $1 order by hour limit $2))
