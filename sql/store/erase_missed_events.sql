-- $1 webhook, $2 rows at most
delete from walhook.missed_event
where webhook_id = $1
    and event_id = any (array(select event_id from walhook.missed_event where webhook_id = $1 order by event_id limit $2))
