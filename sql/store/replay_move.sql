-- $1 id, $2 phase, $3 position, $4 the number of the last event that was read, $5 the deliveries that were created, $6 how many at most,
-- $7 whether it is finished, $8 seconds until the next step
update walhook.recovery
set phase = $2, position = $3, sequence = $4, recovered = recovered + cardinality($5::uuid[]),
    chunk = case when $7::boolean then array[]::uuid[] when cardinality($5) > 0 then $5 else chunk end,
    chunk_at = case when cardinality($5) > 0 then clock_timestamp() else chunk_at end,
    chunk_size = $6,
    finished_at = case when $7 then clock_timestamp() end,
    replay_due_at = clock_timestamp() + make_interval(secs => $8)
where id = $1
returning recovered
