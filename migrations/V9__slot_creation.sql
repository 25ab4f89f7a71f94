-- Slots that a setup is creating: one without a first checkpoint has been read by nobody, and can be made anew.
create table walhook.slot_creation (
    slot     text primary key,
    begun_at timestamptz not null default now()
);
