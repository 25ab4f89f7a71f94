-- $1 id, $2 phase, $3 position, $4 deliveries started, $5 whether it is finished, $6 seconds until the next step
update walhook.recovery
set phase = $2, position = $3, recovered = recovered + $4,
    finished_at = case when $5::boolean then clock_timestamp() end,
    due_at = clock_timestamp() + make_interval(secs => $6)
where id = $1
returning recovered
