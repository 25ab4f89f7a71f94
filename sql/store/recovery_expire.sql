-- $1 since when finished recoveries are kept
delete from walhook.recovery where finished_at < $1
