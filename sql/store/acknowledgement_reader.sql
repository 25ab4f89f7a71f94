-- $1 slot
select reader from walhook.acknowledgement where slot = $1
