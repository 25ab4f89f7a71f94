-- Whether commits wait for a standby
select current_setting('synchronous_standby_names') <> '' as synchronous
