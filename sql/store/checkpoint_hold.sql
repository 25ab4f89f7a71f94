-- Locks the checkpoint until the transaction ends. $1 slot
select from walhook.checkpoint where slot = $1 for update
