-- The position that gaps were measured from is given up, and they with it. $1 slot
update walhook.gap set repaired_at = now() where slot = $1 and repaired_at is null
