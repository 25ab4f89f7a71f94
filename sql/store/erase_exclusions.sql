-- $1 webhook, $2 rows at most
delete from walhook.replay_exclusion
where ctid = any (array(
    select exclusion.ctid
    from walhook.recovery
    join walhook.replay_exclusion as exclusion on exclusion.replay_id = recovery.id
    where recovery.webhook_id = $1
    limit $2))
