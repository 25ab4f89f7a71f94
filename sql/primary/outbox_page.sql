-- A page of a window, with the server's state: at least one row. Sizes are those of the stored, compressed values.
-- $1 the snapshot at which the window starts, $2 the one at which it ends (null: now), $3 the row after which the page starts,
-- $4 the maximum of rows, $5 the maximum of bytes, $6 and $7 the rows and transactions of floors, which apply to a window up to now:
-- a page starts after the highest row of which all transactions before the floor's had ended when the window started, or are running
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
