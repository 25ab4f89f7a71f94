-- $1 slot, $2 holder
delete from walhook.capture_lease where slot = $1 and holder = $2
