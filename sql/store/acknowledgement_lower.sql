-- Lowers the limit when a reader stops. $1 slot, $2 reader, $3 the last acknowledged LSN
update walhook.acknowledgement
set limit_lsn = $3
where slot = $1 and reader = $2
