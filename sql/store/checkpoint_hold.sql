-- Nobody moves the checkpoint while this transaction lasts. $1 slot
select from walhook.checkpoint where slot = $1 for update
