-- The oid of the schema of capture by triggers. Another schema of the same name, created later, has another oid.
select to_regnamespace('walhook_capture')::oid
