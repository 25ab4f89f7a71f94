-- Ends a job early. Returns how many deliveries it has created, or no row if it has ended before. $1 id
update walhook.recovery set finished_at = now(), cancelled_at = now(), chunk = array[]::uuid[]
where id = $1 and finished_at is null
returning recovered
