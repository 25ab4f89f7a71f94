-- The outbox and what belongs to it. Capture by triggers has all its objects in this schema: dropping it leaves nothing behind.
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
    -- Rows live only briefly. Vacuum keeps the free space for later rows: truncating the table would lock out the application.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off
);

-- How far the outbox was read and cleared. A server that was restored to an earlier state has an earlier position.
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
