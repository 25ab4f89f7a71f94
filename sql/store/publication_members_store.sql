-- Stores what the publication streams. $1 slot, $2 the members
update walhook.checkpoint set publication_members = $2 where slot = $1 and publication_members is distinct from $2
