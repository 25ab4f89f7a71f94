-- Notes the triggers as they are now. A trigger that is disabled or enabled afterwards has another version, and one that is dropped no row.
create table if not exists walhook_capture.installed (
    trigger oid primary key,
    version xid not null,
    -- Null for the triggers of partitions: these are dropped only with the table's own, or because a partition is detached.
    relation oid
);
delete from walhook_capture.installed;
insert into walhook_capture.installed (trigger, version, relation)
select made.oid, made.xmin, case when made.tgparentid = 0 then made.tgrelid end
from pg_catalog.pg_trigger made
join pg_catalog.pg_proc function on function.oid = made.tgfoid
where function.pronamespace = 'walhook_capture'::regnamespace and made.tgrelid <> 'walhook_capture.outbox'::regclass;
