-- The process that may advance the checkpoint while triggers capture. Each process that starts to read the outbox stores a new id here.
-- Null before the first one, after a repair, and when a switch to the WAL is prepared.
alter table walhook.checkpoint add column reader uuid;
