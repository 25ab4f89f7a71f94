-- The number of the last event. Storing events locks the row until the commit, so that events are numbered in the order in which they
-- become visible, without gaps.
create table walhook.event_sequence (
    only_row boolean primary key default true check (only_row),
    last     bigint not null
) with (fillfactor = 10); -- changes with every batch: updated in place
insert into walhook.event_sequence (last) values (0);
