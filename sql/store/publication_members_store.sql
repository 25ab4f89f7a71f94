-- Stores the publication's tables. $1 slot, $2 the tables and the ids of their memberships
update walhook.checkpoint set publication_members = $2 where slot = $1 and publication_members is distinct from $2
