-- Flushes the WAL of every earlier commit: writes a row and waits for the flush of its own commit.
with written as (update walhook_capture.progress set at = clock_timestamp() returning at)
select count(*), set_config('synchronous_commit', 'local', true) from written
