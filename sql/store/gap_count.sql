-- $1 slot
select count(*) from walhook.gap where slot = $1 and repaired_at is null
