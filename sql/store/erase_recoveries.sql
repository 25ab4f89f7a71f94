-- $1 webhook, $2 rows at most. One that is being worked off is waited for: what it makes is pending then.
delete from walhook.recovery
where id in (select id from walhook.recovery where webhook_id = $1 limit $2)
