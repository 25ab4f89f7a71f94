-- $1 slot, $2 reader, $3 the new limit
update walhook.acknowledgement
set limit_lsn = greatest(limit_lsn, $3)
where slot = $1 and reader = $2
