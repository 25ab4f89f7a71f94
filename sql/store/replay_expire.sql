-- Removes what ended replays have excluded. $1 rows at most
delete from walhook.replay_exclusion
where ctid = any (array(
    select exclusion.ctid
    from walhook.replay_exclusion as exclusion
    where not exists (select from walhook.recovery where id = exclusion.replay_id and finished_at is null)
    limit $1))
