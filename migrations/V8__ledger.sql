-- What a gap in the log is found, measured and closed by.

-- The ledger: the watched columns of each watched row as the store last saw them, so that after a gap the transitions can be
-- found that the log no longer shows..
create table walhook.last_seen (
    row_id   bigint not null,
    -- The table, by a number of ours.
    relation smallint not null,
    -- The values, in the order in which the table's watched columns are listed, as a JSON array.
    state    text not null,
    primary key (relation, row_id)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- Tables of which the ledger has every row: what it does not have of them is new.
create table walhook.ledger_complete (
    relation smallint primary key
);

-- How far the slot may be told to forget log in which nothing was ours: kept ahead of use, so that what is found further on
-- was not our doing.
create table walhook.acknowledgement (
    slot      text primary key,
    limit_lsn pg_lsn not null
);

-- Whether the event was found by comparison after a gap: what was in between is not known.
alter table walhook.event add column repaired boolean not null default false;
