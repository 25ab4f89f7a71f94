-- Those that remain. $1 users, $2 the add-on of each, $3 the number of rows
update walhook.user_addon
set copies = user_addon.copies - revoked.copies
from unnest($1::text[], $2::text[], $3::integer[]) as revoked (user_id, addon, copies)
where user_addon.user_id = revoked.user_id and user_addon.addon = revoked.addon
