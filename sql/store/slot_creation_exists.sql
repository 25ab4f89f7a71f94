-- $1 slot
select exists (select from walhook.slot_creation where slot = $1)
