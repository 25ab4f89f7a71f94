-- Removes rows that the store has, and says how far. $1 up to this row, $2 what this snapshot sees, $3 the window's number,
-- $4 behind this row: what was removed before is not gone through again. Its commit must outlast a crash: the numbers of all
-- transactions that the snapshot has seen do then too.
with gone as (
    delete from walhook_capture.outbox
    where seq > $4 and seq <= $1 and pg_visible_in_snapshot(xid, $2::pg_snapshot)
    returning seq
), reached as (
    update walhook_capture.progress set number = $3, seq = $1, at = clock_timestamp() where (number, seq) < ($3, $1)
)
select count(*), set_config('synchronous_commit', 'local', true) from gone
