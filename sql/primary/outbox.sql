-- name: acknowledge
-- Deletes the recorded failures and resets their count.
with known as (delete from walhook_capture.failure)
select setval('walhook_capture.failures', 1, false)

-- name: backlog
-- The number of rows in the outbox, counted up to a limit, and the age of the oldest. $1 the row
-- after which to start, so that deleted rows are not scanned; null: as the outbox knows it
select count(*) as rows, coalesce(extract(epoch from clock_timestamp() - min(at)), 0)::double precision as age
from (
    select at from walhook_capture.outbox
    where seq > coalesce($1, (select max(seq) from walhook_capture.progress), 0)
    order by seq limit 100000
) waiting

-- name: begin
-- Records the position from which the outbox is read, unless it was read further already. $1 the
-- window's number, $2 the last row
update walhook_capture.progress set number = $1, seq = $2, at = clock_timestamp()
where (number, seq) < ($1, $2)

-- name: clear
-- Deletes the rows that the store has, and records the position. Returns how many there were, the
-- sum of their times, and the id of its own transaction. $1 the last row, $2 the snapshot that must
-- see a row's transaction, $3 the window's number, $4 the row after which to start, so that rows
-- deleted earlier are not scanned again, $5 the timeline that the server must have: on any other,
-- nothing is deleted. The commit must survive a crash: then the ids of all transactions that the
-- snapshot has seen do too.
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

-- name: failures
-- How often triggers have failed, and the last failure whose reason was recorded
select
    failures.last_value as count,
    (
        select failure.operation || ' of ' || failure.relation || ': ' || failure.message || ' (' || failure.state || ')'
        from walhook_capture.failure order by id desc limit 1
    ) as last
from walhook_capture.failures
where failures.is_called

-- name: flush
-- Flushes the WAL of every earlier commit: writes a row and waits for the flush of its own commit.
-- Returns what identifies the server's epoch, as outbox_page.sql does.
with written as (update walhook_capture.progress set at = clock_timestamp() returning at)
select count(*), set_config('synchronous_commit', 'local', true),
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline,
    (select checkpoint_lsn::text from pg_catalog.pg_control_checkpoint()) as checkpoint
from written

-- name: highest
-- The highest row number in the outbox
select coalesce(max(seq), 0) from walhook_capture.outbox

-- name: page
-- A page of a window, with the server's state: at least one row. Sizes are those of the stored,
-- compressed values. $1 the snapshot at which the window starts, $2 the one at which it ends (null:
-- now), $3 the row after which the page starts, $4 the maximum of rows, $5 the maximum of bytes, $6
-- and $7 the rows and transactions of floors, which apply to a window up to now: a page starts
-- after the highest row of which all transactions before the floor's had ended when the window
-- started, or are running
with sequence as (
    -- Only one that assigns numbers in ascending order
    select seqrelid as oid from pg_catalog.pg_sequence
    where seqrelid = pg_get_serial_sequence('walhook_capture.outbox', 'seq')::regclass
        and seqcache = 1 and seqincrement > 0 and not seqcycle
), start as (
    select greatest($3, (
        select max(floor.seq)
        from unnest($6::bigint[], $7::text[]::xid8[]) floor (seq, xid)
        where floor.xid <= (
            select least(pg_snapshot_xmax($1::pg_snapshot), (
                select xid
                from pg_snapshot_xip($1::pg_snapshot) xid
                where pg_visible_in_snapshot(xid, pg_current_snapshot())
                order by xid
                limit 1
            ))
        )
    )) as seq
), page as (
    select candidate.*, sum(candidate.size) over (order by candidate.seq) - candidate.size as before, count(*) over () as total
    from (
        select seq, xid, at, relation, operation, muted, old, new,
            coalesce(pg_column_size(old), 0) + coalesce(pg_column_size(new), 0) as size
        from walhook_capture.outbox
        where seq > (select start.seq from start) and not pg_visible_in_snapshot(xid, $1::pg_snapshot)
            and ($2::text is null or pg_visible_in_snapshot(xid, $2::pg_snapshot))
        order by seq
        limit $4
    ) candidate
)
select server.*, page.seq, page.xid::text as xid, page.at, page.relation, page.operation::text as operation, page.muted,
    page.old, page.new, page.total
from (
    select
        pg_current_snapshot()::text as snapshot,
        (select system_identifier from pg_catalog.pg_control_system()) as system_identifier,
        case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end as timeline,
        -- True while WAL of commits that this snapshot sees may not be flushed.
        case when not pg_is_in_recovery() then pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn() end as unflushed,
        (select checkpoint_lsn::text from pg_catalog.pg_control_checkpoint()) as checkpoint,
        (select is_called from walhook_capture.failures) as failed,
        (select number from walhook_capture.progress) as number,
        (select seq from walhook_capture.progress) as cleared,
        (select start.seq from start) as start,
        (select pg_relation_filenode(oid) from sequence) as numbering,
        (
            select case when has_sequence_privilege(oid, 'usage, select') then pg_sequence_last_value(oid) end
            from sequence
        ) as assigned
) server
left join page on page.before < $5
order by page.seq

-- name: state
-- The oid of the schema of capture by triggers, if it exists, whether the role owns it, what is
-- missing in it, and whether the role may read and clear the outbox
select
    to_regnamespace('walhook_capture')::oid as schema,
    exists (
        select from pg_catalog.pg_namespace where nspname = 'walhook_capture' and pg_has_role(nspowner, 'usage')
    ) as owned,
    (select pg_get_userbyid(nspowner)::text from pg_catalog.pg_namespace where nspname = 'walhook_capture') as owner,
    array(
        select name from unnest(array['outbox', 'progress', 'failures', 'failure', 'installed']) as name
        where to_regclass('walhook_capture.' || name) is null
    ) as missing,
    coalesce(
        has_schema_privilege(to_regnamespace('walhook_capture'), 'usage')
        and has_table_privilege(to_regclass('walhook_capture.outbox'), 'select, delete')
        and has_table_privilege(to_regclass('walhook_capture.progress'), 'select, update'),
        false
    ) as usable,
    exists (
        select from pg_catalog.pg_trigger
        where tgrelid = to_regclass('walhook_capture.outbox') and tgname = 'emptied' and tgenabled <> 'D'
    ) as guarded
