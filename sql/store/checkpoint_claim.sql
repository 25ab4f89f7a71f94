-- Makes a process the only one that may advance the checkpoint: batches that others have read and not stored are rejected from now on.
-- It reads the outbox: which tables are in the publication does not matter meanwhile. $1 slot, $2 the process's id
update walhook.checkpoint set reader = $2, publication_members = null where slot = $1
