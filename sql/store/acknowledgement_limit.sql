-- $1 slot
select limit_lsn from walhook.acknowledgement where slot = $1
