-- The key that makes the feed's cursors unreadable: the numbers inside would show each user how many events all users have. In the store
-- and not derived from the master key, whose rotation must not invalidate cursors that clients keep.
alter table walhook.event_sequence add column cursor_key uuid not null default gen_random_uuid();
