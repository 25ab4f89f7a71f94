-- Attempts that were under way when their delivery was redelivered or cancelled. Their outcome changes nothing any more, but they
-- were made, and have a line in the attempt log. A row goes when the outcome is known, or after a day.
create table walhook.superseded_attempt (
    delivery_id uuid not null,
    -- The lease under which the attempt was made.
    lease       uuid not null,
    noted_at    timestamptz not null default now(),
    primary key (delivery_id, lease)
);
