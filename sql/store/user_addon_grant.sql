-- $1 users, $2 the add-on of each
insert into walhook.user_addon (user_id, addon)
select * from unnest($1::text[], $2::text[])
on conflict do nothing
