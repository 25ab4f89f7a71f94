-- $1 slot
select reason, detail from walhook.gap where slot = $1 and repaired_at is null order by id
