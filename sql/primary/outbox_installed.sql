-- Notes the triggers as they are now. A trigger that is disabled or enabled afterwards has another version, and one that is dropped no row.
create table if not exists walhook_capture.installed (
    trigger oid primary key,
    version xid not null
);
delete from walhook_capture.installed;
insert into walhook_capture.installed (trigger, version)
select made.oid, made.xmin
from pg_catalog.pg_trigger made
join pg_catalog.pg_proc function on function.oid = made.tgfoid
where function.pronamespace = 'walhook_capture'::regnamespace and made.tgrelid <> 'walhook_capture.outbox'::regclass;
