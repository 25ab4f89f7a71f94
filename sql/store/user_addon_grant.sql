-- $1 users, $2 the add-on of each, $3 the number of rows
insert into walhook.user_addon (user_id, addon, copies)
select * from unnest($1::text[], $2::text[], $3::integer[])
on conflict (user_id, addon) do update set copies = user_addon.copies + excluded.copies
