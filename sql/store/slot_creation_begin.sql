-- $1 slot
insert into walhook.slot_creation (slot) values ($1)
on conflict (slot) do update set begun_at = now()
