-- $1 users, $2 the add-on of each
delete from walhook.user_addon
using unnest($1::text[], $2::text[]) as revoked (user_id, addon)
where user_addon.user_id = revoked.user_id and user_addon.addon = revoked.addon
