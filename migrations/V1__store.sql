-- The store: what was raised, what is still to be delivered, what was tried, and how far the log has been read.
-- Everything is in the schema walhook; the migration runner creates it.

create table walhook.webhook (
    id                   uuid primary key,
    user_id              text not null,
    name                 text not null,
    url                  text not null,
    -- A set, in the catalogue's order.
    events               text[] not null check (cardinality(events) > 0),
    active               boolean not null default true,
    -- AES-256-GCM: nonce, ciphertext and tag; the webhook's id is the associated data.
    secret               bytea not null,
    secret_key_id        text not null,
    success_count        bigint not null default 0,
    failure_count        bigint not null default 0,
    consecutive_failures bigint not null default 0,
    -- When the present run of failures began; null while there is none.
    failing_since        timestamptz,
    last_triggered_at    timestamptz,
    disabled_at          timestamptz,
    disabled_reason      text,
    created_at           timestamptz not null default now(),
    updated_at           timestamptz not null default now()
) with (fillfactor = 70); -- counters change with every batch: leave room for updates in place
create index webhook_user on walhook.webhook (user_id, id);

create table walhook.api_token (
    id         uuid primary key,
    user_id    text not null,
    name       text not null,
    -- SHA-256 of the token; the token itself is nowhere.
    hash       bytea not null unique check (octet_length(hash) = 32),
    created_at timestamptz not null default now(),
    revoked_at timestamptz
);
create index api_token_user on walhook.api_token (user_id);

-- Ids are UUIDv7, so ranges of ids are ranges of time: partitions hold one day each. Rows of days that have no partition
-- go to the default one.
create table walhook.event (
    id          uuid primary key,
    user_id     text not null,
    kind        text not null,
    occurred_at timestamptz not null,
    -- Null for a test, which no commit raised.
    commit_lsn  pg_lsn,
    ordinal     bigint,
    -- json and not jsonb: every attempt must send the same bytes.
    data        json not null
) partition by range (id);
create table walhook.event_default partition of walhook.event default;

-- What is still to be delivered; a row goes when its delivery ends. The table stays as small as the backlog.
create table walhook.delivery (
    id         uuid primary key,
    webhook_id uuid not null,
    event_id   uuid not null,
    round      smallint not null default 1,
    -- The number of the next attempt.
    attempt    smallint not null default 1,
    -- When the next attempt may begin. While leased: when the lease ends, so that a dead replica's work comes due by itself.
    due_at     timestamptz not null,
    -- Who holds it: a fresh id for every claim, so that an answer of an earlier holder changes nothing.
    lease      uuid
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
-- Fresh deliveries and retries are claimed apart: neither waits behind the other.
create index delivery_fresh on walhook.delivery (webhook_id, due_at) where attempt = 1;
create index delivery_retry on walhook.delivery (webhook_id, due_at) where attempt > 1;

-- The delivery log: one row an attempt, or a cancellation.
create table walhook.attempt (
    id               uuid not null,
    webhook_id       uuid not null,
    delivery_id      uuid not null,
    event_id         uuid not null,
    event_kind       text not null,
    round            smallint not null,
    attempt          smallint not null,
    test             boolean not null default false,
    -- To the millisecond: what X-Webhook-Timestamp said.
    started_at       timestamptz not null,
    duration_ms      integer,
    outcome          text not null,
    response_status  smallint,
    error_kind       text,
    error_message    text,
    -- As sent, so that the log can show the request: the secret they were made with may be gone.
    url              text,
    signature        bytea,
    standard_signature bytea,
    -- The first 4 KiB of the answer's body.
    response_body    bytea,
    primary key (webhook_id, id)
) partition by range (id);
create table walhook.attempt_default partition of walhook.attempt default;

create table walhook.checkpoint (
    slot              text primary key,
    system_identifier bigint not null,
    timeline          integer not null,
    commit_lsn        pg_lsn not null,
    ordinal           bigint not null,
    resume_lsn        pg_lsn not null,
    updated_at        timestamptz not null default now()
);

-- A stretch of the log that was lost to us, until it is repaired.
create table walhook.gap (
    id          bigint generated always as identity primary key,
    slot        text not null,
    reason      text not null,
    detail      text not null,
    found_at    timestamptz not null default now(),
    repaired_at timestamptz
);
create unique index gap_open on walhook.gap (slot, reason) where repaired_at is null;

-- Releases that have been distributed: the event is raised once for each.
create table walhook.distributed_release (
    release_id bigint primary key
);

-- Which add-ons each user has at the checkpoint: seeded when the slot is made, kept by the stream. The primary itself would
-- tell what they have now, which is not what they had at a change that is read late.
create table walhook.user_addon (
    user_id text not null,
    addon   text not null,
    primary key (user_id, addon)
);

-- Transitions whose owner could not be found.
create table walhook.unrouted_event (
    id          uuid primary key,
    kind        text not null,
    reason      text not null,
    source      text not null,
    source_id   text not null,
    occurred_at timestamptz not null,
    commit_lsn  pg_lsn not null,
    ordinal     bigint not null,
    recorded_at timestamptz not null default now()
);

-- What setup found on the primary and teardown restores.
create table walhook.replica_identity (
    table_oid  oid primary key,
    table_name text not null,
    identity   "char" not null,
    index_name text
);
