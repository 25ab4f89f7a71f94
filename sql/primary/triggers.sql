-- name: altered
-- Walhook's triggers that were disabled or enabled since setup noted them, or dropped from a table
-- that still exists
select coalesce(found.tgname || ' of ' || found.tgrelid::regclass, 'one of ' || relation.oid::regclass || ' that is gone') as trigger
from walhook_capture.installed noted
left join pg_catalog.pg_trigger found on found.oid = noted.trigger
left join pg_catalog.pg_class relation on relation.oid = noted.relation
where found.xmin is distinct from noted.version and (found.oid is not null or relation.oid is not null)
order by 1

-- name: blocker
-- The session that keeps one of the tables from being locked: one that vacuums it or changes its
-- definition, or else the oldest transaction that has written to one. $1 OIDs
select
    'process ' || activity.pid || coalesce(' of ' || activity.usename, '')
        || coalesce(
            ' (' || nullif(activity.application_name, '') || ')',
            -- Only workers of the server have no user.
            case when activity.usesysid is null then ' (autovacuum)' end,
            ''
        )
        || coalesce(', in a transaction since ' || activity.xact_start::timestamptz(0)::text, '')
        || ', on ' || locks.relation::regclass::text as holder
from pg_catalog.pg_locks locks
join pg_catalog.pg_stat_activity activity on activity.pid = locks.pid
where locks.locktype = 'relation' and locks.granted and locks.relation = any($1::oid[])
    and locks.mode not in ('AccessShareLock', 'RowShareLock') and locks.pid <> pg_backend_pid()
    and locks.database = (select oid from pg_catalog.pg_database where datname = current_database())
order by locks.mode = 'RowExclusiveLock', activity.xact_start
limit 1

-- name: comment
comment on function walhook_capture.{function}() is 'walhook {hash}';

-- name: drop
drop schema if exists walhook_capture cascade;

-- name: function
-- Whether an update has changed what the outbox needs. Most updates have not: their rows are not
-- queued for the trigger, and cost no transaction id. The trigger depends on no column, so that the
-- platform may drop or alter each: what fails here fails again in the trigger, which notes it.
create or replace function walhook_capture.{function}_changed(before anyelement, after anyelement) returns boolean
    language plpgsql
as {quote}
begin
    return {changed};
exception when others then
    return true;
end
{quote};

create or replace function walhook_capture.{function}() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '1s'{formats}
as {quote}
declare
    is_changed boolean := true;
    before text[];
    after text[];
    failure bigint := 0;
    state text;
    reason text;
begin
    for is_planned in 0..1 loop
        begin
            if current_setting('walhook.outbox_locked', true) = 'on' then
                raise lock_not_available using message = 'the outbox was locked at an earlier row of the transaction';
            end if;
            if is_planned = 0 then
                if tg_op in ('UPDATE', 'DELETE') then
                    before := {before};
                end if;
                if tg_op in ('UPDATE', 'INSERT') then
                    after := {after};
                end if;
            else
                execute {inner}{planned}{inner} into is_changed, before, after using left(tg_op, 1), old, new;
            end if;
            if not is_changed then
                return null;
            end if;
            if tg_op = 'DELETE' then
                -- From here on, this transaction's insertions are compared with what it has deleted.
                perform set_config('walhook.deleted', 'on', true);
            elsif {rekeyed} and (tg_op = 'UPDATE' or current_setting('walhook.deleted', true) = 'on') then
                perform walhook_capture.write_parts('{table}', before, after);
                return null;
            end if;
            insert into walhook_capture.outbox (relation, operation, muted, old, new)
            values (
                '{table}', left(tg_op, 1)::"char", coalesce(current_setting('walhook.mute', true), '') = 'on', before, after
            );
            return null;
        -- Never the application's transaction. A cancelled statement is not among these: it stays
        -- cancelled.
        exception when others then
            state := sqlstate;
            reason := sqlerrm;
        end;
        -- The session has plans from before the type of a column was altered. A second round
        -- plans the expressions again.
        exit when state <> '42804';
    end loop;
    if state = '55P03' then
        -- The other rows of the transaction do not wait for the lock again.
        perform set_config('walhook.outbox_locked', 'on', true);
    end if;
    -- A sequence needs no space and is not rolled back: it moves whatever else fails.
    begin
        failure := nextval('walhook_capture.failures');
    exception when others then
        null;
    end;
    if failure <= 100 or failure % 1000 = 0 then
        begin
            insert into walhook_capture.failure (id, relation, operation, state, message)
            values (failure, '{table}', tg_op, state, reason);
        exception when others then
            null;
        end;
        raise log 'walhook: % of {table} was not captured: % (%)', lower(tg_op), reason, state;
    end if;
    return null;
end
{quote};
-- Who creates a partition creates its triggers, and PostgreSQL checks this right. Without usage of
-- the schema, it allows nothing else. The condition runs with the rights of who updates.
grant execute on function walhook_capture.{function}(), walhook_capture.{function}_changed(anyelement, anyelement) to public;

-- name: function_drop
drop function if exists walhook_capture.{function}(), walhook_capture.{function}_changed(anyelement, anyelement) cascade;

-- name: handover
-- Marks the switch to triggers in the WAL: earlier changes are read from the WAL, later ones from
-- the outbox.
select pg_catalog.pg_logical_emit_message(true, 'walhook', 'handover');

-- name: installed
-- Notes the triggers as they are now.
delete from walhook_capture.installed;
insert into walhook_capture.installed (trigger, version, relation)
select made.oid, made.xmin, case when made.tgparentid = 0 then made.tgrelid end
from pg_catalog.pg_trigger made
join pg_catalog.pg_proc function on function.oid = made.tgfoid
where function.pronamespace = 'walhook_capture'::regnamespace and made.tgrelid <> 'walhook_capture.outbox'::regclass;

-- name: lock
-- Makes changes of the triggers consecutive: one transaction at a time creates or drops them.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('walhook triggers', 0))

-- name: makers
-- The current snapshot, and the transactions that created Walhook's triggers on some of the tables,
-- as the lower 32 bits of their ids. Others may have been replaced since. $1 the tables' OIDs
select
    pg_current_snapshot()::text as snapshot,
    array(
        select distinct made.xmin::text::bigint
        from pg_catalog.pg_trigger made
        join pg_catalog.pg_proc function on function.oid = made.tgfoid
        join pg_catalog.pg_namespace home on home.oid = function.pronamespace
        where made.tgrelid = any ($1) and home.nspname = 'walhook_capture'
    ) as makers

-- name: schema
-- The outbox and what belongs to it. Capture by triggers has all its objects in this schema:
-- dropping it leaves nothing behind.
create schema if not exists walhook_capture;

create table if not exists walhook_capture.outbox (
    seq bigint generated always as identity primary key,
    xid xid8 not null default pg_catalog.pg_current_xact_id(),
    at timestamptz not null default pg_catalog.clock_timestamp(),
    relation text not null,
    operation "char" not null,
    muted boolean not null,
    old text[],
    new text[]
) with (
    -- Rows live only briefly. Vacuum keeps the free space for later rows: truncating the table
    -- would lock out the application.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off
);

-- How far the outbox was read and cleared. A server that was restored to an earlier state has an
-- earlier position.
create table if not exists walhook_capture.progress (
    single boolean primary key default true check (single),
    number bigint not null,
    seq bigint not null,
    at timestamptz not null default pg_catalog.clock_timestamp()
);
insert into walhook_capture.progress (number, seq) values (0, 0) on conflict do nothing;

-- Advances when a trigger fails, even if the transaction is rolled back or the disk is full.
create sequence if not exists walhook_capture.failures;
create table if not exists walhook_capture.failure (
    id bigint primary key,
    at timestamptz not null default pg_catalog.clock_timestamp(),
    relation text not null,
    operation text not null,
    state text not null,
    message text not null
);

create or replace function walhook_capture.outbox_emptied() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp
as $walhook$
begin
    insert into walhook_capture.failure (id, relation, operation, state, message)
    values (nextval('walhook_capture.failures'), 'outbox', tg_op, '01000', 'the outbox was emptied by ' || session_user);
    return null;
end
$walhook$;
create or replace trigger emptied before truncate on walhook_capture.outbox
    for each statement execute function walhook_capture.outbox_emptied();

-- A row that a transaction deletes and inserts again under the same key is the same row, moved to
-- another partition or replaced. The outbox gets one update instead of a deletion and an insertion.
create index if not exists outbox_deleted on walhook_capture.outbox (xid, relation, (old[1])) where operation = 'D';

-- Writes an insertion into a transaction that has deleted rows, or an update that changed the key: a
-- row that went, and another that came.
create or replace function walhook_capture.write_parts(of_relation text, before text[], after text[]) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
    -- The plan is cached, often made while the outbox is empty: a sequential scan would be slow
    -- once it is large.
    set enable_seqscan = off
as $walhook$
declare
    is_muted boolean := coalesce(current_setting('walhook.mute', true), '') = 'on';
    deleted text[];
begin
    if before is not null then
        perform set_config('walhook.deleted', 'on', true);
        insert into walhook_capture.outbox (relation, operation, muted, old) values (of_relation, 'D', is_muted, before);
    end if;
    delete from walhook_capture.outbox
    where seq = (
        select seq
        from walhook_capture.outbox gone
        where gone.xid = pg_current_xact_id() and gone.relation = of_relation
            and gone.operation = 'D' and gone.old[1] = after[1]
        limit 1
    )
    returning old into deleted;
    insert into walhook_capture.outbox (relation, operation, muted, old, new)
    values (of_relation, case when deleted is null then 'I' else 'U' end::"char", is_muted, deleted, after);
end
$walhook$;

-- The triggers as setup has left them. A trigger that is disabled or enabled afterwards has another
-- version, and one that is dropped no row.
create table if not exists walhook_capture.installed (
    trigger oid primary key,
    version xid not null,
    -- Null for the triggers of partitions: these are dropped only with the table's own, or because
    -- a partition is detached.
    relation oid
);

-- name: schema_oid
-- The oid of the schema of capture by triggers. Another schema of the same name, created later, has
-- another oid.
select to_regnamespace('walhook_capture')::oid

-- name: tables
-- The tables with triggers that call a function of capture by triggers, and whether the role owns
-- them. $1 the function; null for all
select distinct
    namespace.nspname::text as schema,
    class.relname::text as name,
    pg_has_role(class.relowner, 'usage') as owned
from pg_catalog.pg_trigger trigger
join pg_catalog.pg_proc function on function.oid = trigger.tgfoid
join pg_catalog.pg_class class on class.oid = trigger.tgrelid
join pg_catalog.pg_namespace namespace on namespace.oid = class.relnamespace
where function.pronamespace = to_regnamespace('walhook_capture') and function.proname = coalesce($1, function.proname)

-- name: trigger
create or replace trigger walhook_{event} after {event} on {table}
    for each {level}{condition} execute function walhook_capture.{function}();

-- name: trigger_always
alter table only {table} enable always trigger walhook_{event};

-- name: triggers
-- Walhook's triggers on the tables. $1 OIDs
select
    trigger.tgrelid as oid,
    trigger.tgname::text as name,
    function.proname::text as function,
    trigger.tgenabled in ('O', 'A') as enabled,
    trigger.tgenabled = 'A' as always,
    obj_description(function.oid, 'pg_proc') as comment
from pg_catalog.pg_trigger trigger
join pg_catalog.pg_proc function on function.oid = trigger.tgfoid
where trigger.tgrelid = any($1::oid[]) and function.pronamespace = to_regnamespace('walhook_capture')

-- name: with_rows
-- The tables to which a row was ever written, even if it was deleted since. $1 OIDs
select distinct oid from unnest($1::oid[]) oid where pg_relation_size(oid) > 0
