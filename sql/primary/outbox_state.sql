-- The oid of the schema of capture by triggers, if it exists, whether the role owns it, what is missing in it, and whether the role may
-- read and clear the outbox
select
    to_regnamespace('walhook_capture')::oid as schema,
    exists (
        select from pg_catalog.pg_namespace where nspname = 'walhook_capture' and pg_has_role(nspowner, 'usage')
    ) as owned,
    array(
        select name from unnest(array['outbox', 'progress', 'failures', 'failure']) as name
        where to_regclass('walhook_capture.' || name) is null
    ) as missing,
    coalesce(
        has_schema_privilege(to_regnamespace('walhook_capture'), 'usage')
        and has_table_privilege(to_regclass('walhook_capture.outbox'), 'select, delete')
        and has_table_privilege(to_regclass('walhook_capture.progress'), 'select, update'),
        false
    ) as usable,
    exists (
        select from pg_catalog.pg_trigger
        where tgrelid = to_regclass('walhook_capture.outbox') and tgname = 'emptied' and tgenabled <> 'D'
    ) as guarded,
    to_regclass('walhook_capture.outbox_deleted') is not null and exists (
        select from pg_catalog.pg_trigger
        where tgrelid = to_regclass('walhook_capture.outbox') and tgname = 'paired' and tgenabled <> 'D'
    ) as paired,
    to_regclass('walhook_capture.installed') is not null as noted
