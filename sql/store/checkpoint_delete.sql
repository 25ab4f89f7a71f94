-- $1 slot
delete from walhook.checkpoint where slot = $1
