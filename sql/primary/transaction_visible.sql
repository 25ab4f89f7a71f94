-- Whether a new snapshot sees the transaction whose number ends in the given 32 bits. The upper ones are this epoch's,
-- or those of the one before when that would lie in the future. $1 the number
with now as (
    select pg_current_snapshot() as snapshot, pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next
), whole as (
    select snapshot, next, ((next >> 32) << 32) | $1::bigint as xid from now
), known as (
    select snapshot, case when xid > next + (1::bigint << 31) then xid - (1::bigint << 32) else xid end as xid from whole
)
select pg_visible_in_snapshot(xid::text::xid8, snapshot) from known
