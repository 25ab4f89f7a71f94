-- name: clear
-- All users lose all add-ons
delete from walhook.user_addon

-- name: grant
-- $1 users, $2 the add-on of each, $3 the number of rows
insert into walhook.user_addon (user_id, addon, copies)
select * from unnest($1::text[], $2::text[], $3::integer[])
on conflict (user_id, addon) do update set copies = user_addon.copies + excluded.copies

-- name: list
-- $1 users
select user_id, addon, copies
from walhook.user_addon
where user_id = any($1::text[])

-- name: reduce
-- Those that remain. $1 users, $2 the add-on of each, $3 the number of rows
update walhook.user_addon
set copies = user_addon.copies - revoked.copies
from unnest($1::text[], $2::text[], $3::integer[]) as revoked (user_id, addon, copies)
where user_addon.user_id = revoked.user_id and user_addon.addon = revoked.addon

-- name: revoke
-- $1 users, $2 the add-on of each, $3 the number of rows
delete from walhook.user_addon
using unnest($1::text[], $2::text[], $3::integer[]) as revoked (user_id, addon, copies)
where user_addon.user_id = revoked.user_id and user_addon.addon = revoked.addon and user_addon.copies <= revoked.copies

-- name: revoke_all
-- $1 users
delete from walhook.user_addon
where user_id = any($1::text[])
