-- The rows that events of other rows need, as of the checkpoint: releases, labels, outlets, tracks and transcoded files. They are
-- copied when capture begins, and follow the stream: an event has the owner as of its change, however late it is read.
create table walhook.lookup_row (
    row_id    bigint not null,
    -- The table, by a number of ours.
    relation  smallint not null,
    -- The transcoder queue entry of a file: all files of an entry are looked up at once.
    parent_id bigint,
    -- The values that events need, in the order in which the table's looked-up columns are listed, as a JSON array.
    state     text not null,
    primary key (relation, row_id)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

create index lookup_row_parent on walhook.lookup_row (parent_id) where parent_id is not null;

-- The tables whose rows are copied. Rows of other tables are looked up on the primary.
create table walhook.lookup_table (
    relation smallint primary key,
    -- The names and values by which the rows were read: under another mapping, they mean something else.
    mapping  text not null
);
