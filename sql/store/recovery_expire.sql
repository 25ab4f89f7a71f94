-- $1 since when the finished ones are kept
delete from walhook.recovery where finished_at < $1
