-- Makes a process the only one that may advance the checkpoint: batches that others have read and not stored are rejected from now on.
-- While the outbox is read, it does not matter what the publication streams. $1 slot, $2 the process's id
update walhook.checkpoint
set reader = $2, publication_members = case when window_from is null then publication_members end
where slot = $1
