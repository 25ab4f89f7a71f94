-- Capture by triggers: changes are read from an outbox on the primary, in windows between two snapshots.

alter table walhook.checkpoint
    -- The window that the position is in; null where the position is one in the log. The position's first part is then the
    -- window's number, its ordinal the place in the outbox.
    add column window_from       text,
    add column window_to         text,
    -- A switch to the log is prepared: the outbox is read up to this snapshot, then the log from this place.
    add column handover_snapshot text,
    add column handover_lsn      pg_lsn,
    add check ((window_from is null) = (window_to is null)),
    add check ((handover_snapshot is null) = (handover_lsn is null));

-- Events of the outbox have no place in the log.
alter table walhook.unrouted_event alter column commit_lsn drop not null;

-- Which process reads the outbox. Its clock is this database's.
create table walhook.capture_lease (
    slot   text primary key,
    holder uuid not null,
    until  timestamptz not null
);
