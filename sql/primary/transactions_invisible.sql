-- The transactions that a new snapshot does not see, and the server's timeline. $1 the lower 32 bits of each transaction's id. The
-- full id is the one nearest to the next id that the server will assign.
with now as materialized (
    select pg_current_snapshot() as snapshot
), next as (
    select snapshot, pg_snapshot_xmax(snapshot)::text::bigint as next from now
), whole as (
    select number, snapshot, next, ((next >> 32) << 32) | number as xid from next, unnest($1::bigint[]) as number
), nearest as (
    select
        number,
        snapshot,
        case
            when xid > next + (1::bigint << 31) then xid - (1::bigint << 32)
            when xid < next - (1::bigint << 31) then xid + (1::bigint << 32)
            else xid
        end as xid
    from whole
)
select
    array(select number from nearest where not pg_visible_in_snapshot(xid::text::xid8, snapshot)) as invisible,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline
