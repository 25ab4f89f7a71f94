-- Which process may move the checkpoint while triggers capture: each that begins to read puts an id of its own here. Without one,
-- the position is in the log, or nobody has read since.
alter table walhook.checkpoint add column reader uuid;
