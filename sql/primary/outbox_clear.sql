-- Deletes the rows that the store has, and records the position. Returns how many there were, the sum of their times, and the id of its own
-- transaction. $1 the last row, $2 the snapshot that must see a row's transaction, $3 the window's number, $4 the row after which to
-- start, so that rows deleted earlier are not scanned again, $5 the timeline that the server must have: on any other, nothing is deleted.
-- The commit must survive a crash: then the ids of all transactions that the snapshot has seen do too.
with server as materialized (
    select left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) = $5 as is_expected
), gone as (
    delete from walhook_capture.outbox
    where seq > $4 and seq <= $1 and pg_visible_in_snapshot(xid, $2::pg_snapshot) and (select is_expected from server)
    returning at
), reached as (
    update walhook_capture.progress set number = $3, seq = $1, at = clock_timestamp()
    where (number, seq) < ($3, $1) and (select is_expected from server)
)
select count(*) as rows, coalesce(sum((extract(epoch from at) * 1000000)::bigint), 0)::text as times,
    (select is_expected from server) as is_expected, pg_current_xact_id()::text as transaction,
    set_config('synchronous_commit', 'local', true)
from gone
