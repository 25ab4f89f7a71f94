-- The tables in the publication, each with the id of its membership, as of the last start of the stream. A table that left and returned has
-- another id: changes that were committed meanwhile are lost. Null while the outbox is read, and until the stream is first started.
alter table walhook.checkpoint add column publication_members jsonb;
