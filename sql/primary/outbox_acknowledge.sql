-- Deletes the recorded failures and resets their count.
with known as (delete from walhook_capture.failure)
select setval('walhook_capture.failures', 1, false)
