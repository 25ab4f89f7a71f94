-- Makes a process the only one that may advance the checkpoint: batches that others have read and not stored are rejected from now on.
-- $1 slot, $2 the process's id
update walhook.checkpoint set reader = $2 where slot = $1
