-- Records the position from which the outbox is read, unless it was read further already. $1 the window's number, $2 the last row
update walhook_capture.progress set number = $1, seq = $2, at = clock_timestamp()
where (number, seq) < ($1, $2)
