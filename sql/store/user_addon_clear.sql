-- All users lose all add-ons
delete from walhook.user_addon
