delete from walhook.used_link where expires_at < now()
