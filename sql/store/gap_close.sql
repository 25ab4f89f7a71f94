-- Closes all gaps of a slot, together with the checkpoint that they were measured from. $1 slot
update walhook.gap set repaired_at = now() where slot = $1 and repaired_at is null
