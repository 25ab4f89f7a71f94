-- Nobody has any
delete from walhook.user_addon
