-- The last row there is
select coalesce(max(seq), 0) from walhook_capture.outbox
