-- Returns the number of the last event that one filtered page of the list examines. No row if there are fewer events.
-- $1 user, $2 the number before which to start, $3 the number of events to skip: one less than to examine
select sequence from walhook.event where user_id = $1 and sequence < $2 order by sequence desc offset $3 limit 1
