-- Whether nobody else has taken the lease since. $1 slot, $2 holder
select exists (select from walhook.capture_lease where slot = $1 and holder = $2)
