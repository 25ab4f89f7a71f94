-- Writes something and waits until it is on disk, and with it all that was committed before.
with written as (update walhook_capture.progress set at = clock_timestamp() returning at)
select count(*), set_config('synchronous_commit', 'local', true) from written
