-- $1 users, $2 the add-on of each, $3 the number of rows
delete from walhook.user_addon
using unnest($1::text[], $2::text[], $3::integer[]) as revoked (user_id, addon, copies)
where user_addon.user_id = revoked.user_id and user_addon.addon = revoked.addon and user_addon.copies <= revoked.copies
