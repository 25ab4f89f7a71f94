-- name: begin
-- $1 slot
insert into walhook.slot_creation (slot) values ($1)
on conflict (slot) do update set begun_at = now()

-- name: end
-- $1 slot
delete from walhook.slot_creation where slot = $1

-- name: exists
-- $1 slot
select exists (select from walhook.slot_creation where slot = $1)
