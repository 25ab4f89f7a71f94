-- The highest row number in the outbox
select coalesce(max(seq), 0) from walhook_capture.outbox
