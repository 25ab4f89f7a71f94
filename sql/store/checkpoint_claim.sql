-- From here on this process alone moves the checkpoint: what others have read and not stored is refused. $1 slot, $2 the process
update walhook.checkpoint set reader = $2 where slot = $1
