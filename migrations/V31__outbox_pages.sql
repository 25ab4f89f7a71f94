-- The pages of the outbox that were read last, with the number and the ordinal of the checkpoint that they belong to. After a failover,
-- they are compared with the rows that the new primary has not deleted. Null while the WAL is read. An earlier version leaves the column
-- as it is when it moves the checkpoint: then the number or the ordinal differs.
alter table walhook.checkpoint add column outbox_pages text;
