-- Flushes the WAL of every earlier commit: writes a row and waits for the flush of its own commit. Returns what identifies the server's
-- epoch, as outbox_page.sql does.
with written as (update walhook_capture.progress set at = clock_timestamp() returning at)
select count(*), set_config('synchronous_commit', 'local', true),
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline,
    (select checkpoint_lsn::text from pg_catalog.pg_control_checkpoint()) as checkpoint
from written
