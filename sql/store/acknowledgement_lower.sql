-- Ends a reader's use of the limit. $1 slot, $2 reader, $3 how far was acknowledged
update walhook.acknowledgement
set limit_lsn = $3
where slot = $1 and reader = $2
