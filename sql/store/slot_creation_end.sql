-- $1 slot
delete from walhook.slot_creation where slot = $1
