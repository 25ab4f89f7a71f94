-- The webhook whose secret a session has just created or replaced, and until when its page may show it. The secret itself is
-- stored in the webhook's row alone.
alter table walhook.session
    add column reveals       uuid,
    add column reveals_until timestamptz;

comment on column walhook.audit.subject_id is
    'the webhook, token or erasure; of a sign-in, the first half of the session''s hash';
