-- Deliveries made again: by hand, one by one, or all of a stretch of time; and what a webhook did, hour by hour.

-- The round of a delivery that was made again; one that is not here is in its first.
create table walhook.delivery_round (
    delivery_id uuid primary key,
    round       smallint not null
);

-- Events that a subscribed webhook was not told because it was inactive when they were stored. A row goes when its delivery
-- is made after all, or with its day.
create table walhook.missed_event (
    webhook_id uuid not null,
    event_id   uuid not null,
    primary key (webhook_id, event_id)
) partition by range (event_id);
create table walhook.missed_event_default partition of walhook.missed_event default;

-- Recoveries asked for. One is worked off in chunks; each moves the position in the transaction that makes its deliveries.
create table walhook.recovery (
    id          uuid primary key,
    webhook_id  uuid not null,
    since       timestamptz not null,
    until       timestamptz not null,
    -- What the last attempt of a delivery has to have ended in.
    outcomes    text[] not null,
    -- Whether missed events are made deliveries of, once the log has been gone through.
    missed      boolean not null,
    phase       text not null default 'log' check (phase in ('log', 'missed')),
    -- The last id that was looked at in this phase.
    position    uuid not null default '00000000-0000-0000-0000-000000000000',
    -- Deliveries made so far.
    recovered   bigint not null default 0,
    -- When to look at it next.
    due_at      timestamptz not null default now(),
    created_at  timestamptz not null default now(),
    finished_at timestamptz
);
create index recovery_open on walhook.recovery (due_at) where finished_at is null;

-- What a webhook's attempts ended in, by the hour they began in. Tests are not counted.
create table walhook.webhook_hour (
    webhook_id         uuid not null,
    hour               timestamptz not null,
    delivered          bigint not null default 0,
    failed             bigint not null default 0,
    permanently_failed bigint not null default 0,
    cancelled          bigint not null default 0,
    -- How many requests took how long, in buckets that grow by the square root of two; null while none was sent.
    durations          integer[],
    primary key (webhook_id, hour)
) with (fillfactor = 70); -- the present hour changes with every batch
create index webhook_hour_age on walhook.webhook_hour (hour);
