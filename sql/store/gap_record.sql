-- $1 slot, $2 reason, $3 detail
insert into walhook.gap (slot, reason, detail)
values ($1, $2, $3)
on conflict (slot, reason) where repaired_at is null do nothing
