-- The number of the last event, and the key of the feed's cursors.
select last, cursor_key from walhook.event_sequence
