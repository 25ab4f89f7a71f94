-- The store, in the order in which data passes through it: what is read from the primary, which
-- events it becomes, for which webhooks, what is delivered, and what was tried. The tables of the
-- API and of setup come last. The migration runner creates the schema.
--
-- Kinds and states are text, so that a replica of an earlier build can read values that it does not
-- know.


-- 1. Capture

-- How far the store has progressed: the events of all changes up to this position are stored. The
-- position is in the WAL, in the outbox, or in the log of another store.
create table walhook.checkpoint (
    slot                text primary key,
    system_identifier   bigint not null,
    timeline            integer not null,

    -- In the WAL: the LSN of the commit that was stored last, and the end of the last transaction
    -- that is completely stored, where streaming restarts.
    commit_lsn          pg_lsn,
    resume_lsn          pg_lsn,
    -- The tables in the publication, each with the id of its membership, as of the last start of
    -- the stream. A table that left and returned has another id: changes that were committed
    -- meanwhile are lost. Null until the stream is first started.
    publication_members jsonb,

    -- In the outbox: the window that was read last, which holds the rows that the second snapshot
    -- sees and the first does not, and the highest sequence number that was read.
    window_number       bigint,
    window_from         text,
    window_to           text,
    last_row            bigint,
    -- The pages that were read last, as JSON. After a failover, they are compared with the rows
    -- that the new primary has not deleted.
    read_pages          text,

    -- In a log: the id of the store that has it, and the number and the id of the event that was
    -- stored last. The id is null at the beginning of a log, and if the log no longer had the event.
    log_store           uuid,
    log_number          bigint,
    log_event           uuid,

    -- The last change of the transaction, or the last row of the window, that was stored. Null: all
    -- of them.
    ordinal             bigint,
    -- A switch to the WAL: the outbox is read up to this snapshot, then the WAL from this LSN. Set
    -- when the switch is prepared, null again when the triggers are dropped.
    handover_snapshot   text,
    handover_lsn        pg_lsn,
    -- The process that may advance the checkpoint while triggers capture. Each process that starts
    -- to read the outbox stores a new id here. Null before the first one, after a repair, and when
    -- a switch to the WAL is prepared.
    reader              uuid,
    updated_at          timestamptz not null default now(),

    check (
        num_nulls(commit_lsn, resume_lsn) = 0
            and num_nonnulls(window_number, window_from, window_to, last_row, read_pages) = 0
            and num_nonnulls(log_store, log_number, log_event) = 0
        or num_nonnulls(commit_lsn, resume_lsn, publication_members) = 0
            and num_nulls(window_number, window_from, window_to, last_row, read_pages) = 0
            and num_nonnulls(log_store, log_number, log_event) = 0
        or num_nonnulls(commit_lsn, resume_lsn, publication_members) = 0
            and num_nonnulls(window_number, window_from, window_to, last_row, read_pages, ordinal) = 0
            and num_nulls(log_store, log_number) = 0
    ),
    check ((handover_snapshot is null) = (handover_lsn is null))
);

-- The other tables of a slot are not columns of the checkpoint: storing events locks its row until
-- the commit, and they must change meanwhile, or before the slot has a checkpoint.

-- Slots that a setup is creating: one without a first checkpoint has been read by nobody, and can
-- be created again.
create table walhook.slot_creation (
    slot     text primary key,
    begun_at timestamptz not null default now()
);

-- How far the slot may be acknowledged without a checkpoint, where the WAL holds no change of
-- Walhook's tables. The limit is stored ahead of use: a slot that stands beyond it was advanced by
-- somebody else.
create table walhook.acknowledgement (
    slot      text primary key,
    limit_lsn pg_lsn not null,
    -- The connection that moves the limit: one that another has replaced changes nothing any more.
    reader    uuid
);

-- Which process reads the outbox or the log. Its clock is this database's.
create table walhook.capture_lease (
    slot   text primary key,
    holder uuid not null,
    until  timestamptz not null
);

-- WAL that can no longer be read, until it is repaired.
create table walhook.gap (
    id          bigint generated always as identity primary key,
    slot        text not null,
    reason      text not null,
    detail      text not null,
    found_at    timestamptz not null default now(),
    repaired_at timestamptz,
    -- Whether the operator's webhooks have it, and its repair.
    is_reported        boolean not null default false,
    is_repair_reported boolean not null default false
);
create unique index gap_open on walhook.gap (slot, reason) where repaired_at is null;

-- The ledger: the watched columns of each watched row as the store last saw them. After a gap it
-- shows the transitions that the WAL no longer has.
create table walhook.last_seen (
    row_id   bigint not null,
    -- The table, by a number of Walhook's.
    relation smallint not null,
    -- The values, in the order in which the table's watched columns are listed, as a JSON array.
    state    text not null,
    primary key (relation, row_id)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- Tables of which the ledger has every row: a row that it does not have is new.
create table walhook.ledger_complete (
    relation smallint primary key
);


-- 2. Lookups: what events need from other rows, as of the checkpoint

-- Releases, labels, outlets, tracks and transcoded files. They are copied when capture begins, and
-- follow the stream: an event has the owner as of its change, however late it is read.
create table walhook.lookup_row (
    row_id    bigint not null,
    -- The table, by a number of Walhook's.
    relation  smallint not null,
    -- The transcoder queue entry of a file: all files of an entry are looked up at once.
    parent_id bigint,
    -- The values that events need, in the order in which the table's looked-up columns are listed,
    -- as a JSON array.
    state     text not null,
    primary key (relation, row_id)
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
create index lookup_row_parent on walhook.lookup_row (parent_id) where parent_id is not null;

-- The tables whose rows are copied. Rows of other tables are looked up on the primary.
create table walhook.lookup_table (
    relation smallint primary key,
    -- The names and values by which the rows were read: under another mapping, they mean something
    -- else.
    mapping  text not null
);

-- Which add-ons each user has at the checkpoint: seeded when the slot is created, kept by the
-- stream. The primary would return what they have now, which is not what they had at a change that
-- is read late.
create table walhook.user_addon (
    user_id text not null,
    addon   text not null,
    -- How many rows of the platform's table say so: without a unique key there can be several, and
    -- one that is deleted revokes nothing.
    copies  integer not null default 1,
    primary key (user_id, addon)
);

-- Releases that have been distributed: the event is raised once for each.
create table walhook.distributed_release (
    release_id bigint primary key
);


-- 3. Events

-- The number of the last event. Storing events locks the row until the commit, so that events are
-- numbered in the order in which they become visible, without gaps.
create table walhook.event_sequence (
    only_row boolean primary key default true check (only_row),
    last     bigint not null,
    -- Identifies this store to those that read its events as a log. Its standbys and copies have the
    -- same.
    store_id uuid not null default gen_random_uuid()
) with (fillfactor = 10); -- changes with every batch: updated in place
insert into walhook.event_sequence (last) values (0);

-- The cells that divide a log by the shards of users. The log's store has all of them; the store of
-- a cell has a copy of its own row, and while it is split, the row of the new cell too.
create table walhook.cell (
    name        text primary key,
    first_shard integer not null,
    last_shard  integer not null,
    -- The id of the cell's store.
    store_id    uuid not null unique,
    -- Grows with every change of the shards.
    epoch       bigint not null,
    check (0 <= first_shard and first_shard <= last_shard and last_shard <= 4095),
    exclude using gist (int4range(first_shard, last_shard, '[]') with &&)
);

-- The shard of a user: the first 12 bits of the SHA-256 of the id in UTF-8.
create function walhook.shard(user_id text) returns integer language sql stable as $$
    select ('x' || encode(substring(sha256(convert_to(user_id, 'UTF8')) for 2), 'hex'))::bit(16)::integer >> 4
$$;

-- What of an event's data names its subject. It reads the data once, whatever their size: `->>` reads
-- them once for each name.
create function walhook.about(data json) returns text[] language sql stable strict as $$
    select array[release_id, release_cat, release_title, track_id, isrc, outlet_id, outlet_name, dsp, invoice_number]
    from json_to_record(data) as named (
        release_id text, release_cat text, release_title text, track_id text, isrc text, outlet_id text, outlet_name text,
        dsp text, invoice_number text
    )
$$;

-- Ids are UUIDv7, so ranges of ids are ranges of time: partitions hold one day each. Rows of days
-- that have no partition go to the default one.
create table walhook.event (
    id          uuid primary key,
    user_id     text not null,
    kind        text not null,
    -- Its place in the feed, in the order of commits. Null for tests.
    sequence    bigint,
    -- Null for events that belong to no label.
    label_id    bigint,
    occurred_at timestamptz not null,
    -- Null for a test, which no commit raised, and for events of the outbox.
    commit_lsn  pg_lsn,
    -- Null for a test. For an event that was read from a log, its number there.
    ordinal     bigint,
    -- Whether the event was found by comparison after a gap: what was in between is not known.
    repaired    boolean not null default false,
    -- Of the user, by `walhook.shard`. Null for a test.
    shard       smallint check (sequence is null or shard is not null),
    -- json and not jsonb: every attempt must send the same bytes.
    data        json not null,
    -- What the event is about, for searches: from `data`, and a hash of the catalogue number. Null
    -- for events without it.
    release_id  bigint,
    catalogue   bigint,
    track_id    bigint
) partition by range (id);
create table walhook.event_default partition of walhook.event default;
create index event_feed on walhook.event (user_id, sequence) where sequence is not null;
-- Find the events of a release, a catalogue number or a track, and by them their attempts: so the
-- attempt log, which has more rows, needs no such index. One integer each, most of which repeat:
-- equal keys are stored once.
create index event_release on walhook.event (release_id) where release_id is not null;
create index event_catalogue on walhook.event (catalogue) where catalogue is not null;
create index event_track on walhook.event (track_id) where track_id is not null;
-- Finds the newest events of all users, by which open streams learn which users have new events, and
-- those of some shards. With the id, the numbers of other shards are counted in the index alone.
create index event_order on walhook.event (sequence, shard) include (id) where sequence is not null;

-- Transitions whose owner could not be found, and those whose event could not be derived or stored.
create table walhook.unrouted_event (
    id          uuid primary key,
    kind        text not null,
    reason      text not null,
    source      text not null,
    source_id   text not null,
    occurred_at timestamptz not null,
    -- Null for events of the outbox, which have no place in the WAL.
    commit_lsn  pg_lsn,
    ordinal     bigint not null,
    recorded_at timestamptz not null default now(),
    -- What the store or the primary reported.
    detail      text not null default '',
    -- What is needed to derive the event again.
    change      json,
    -- Whether the operator's webhooks have it.
    is_reported boolean not null default false
);
create index unrouted_event_unreported on walhook.unrouted_event (id) where not is_reported;

-- Transitions that raised no event because a value is not known, by the reason, and the last one.
create table walhook.ignored_transition (
    reason      text primary key,
    transitions bigint not null,
    source      text not null,
    source_id   text not null,
    value       text not null,
    last_at     timestamptz not null
);


-- 4. Webhooks

create table walhook.webhook (
    id                          uuid primary key,
    user_id                     text not null,
    name                        text not null,
    url                         text not null,
    -- A set, in the catalogue's order.
    events                      text[] not null check (cardinality(events) > 0),

    -- Options of the owner's.
    description                 text,
    -- Strings by name, for the owner's own use.
    metadata                    jsonb not null default '{}',
    -- Which of the subscribed events are delivered: an object with lists of label_ids, outlet_ids
    -- and statuses. Null: all.
    filter                      jsonb,
    -- Which deliveries wait for each other: none, those of one release, or all (strict).
    ordering                    text not null default 'none',
    -- hmac, or hmac+ed25519.
    signing                     text not null default 'hmac',
    -- The names of the custom headers. Names and values together are encrypted in `headers`, as the
    -- secret is, but with associated data of their own.
    header_names                text[] not null default '{}',
    headers                     bytea,
    headers_key_id              text,
    -- When the custom headers last changed. Never reset, so that a version of the settings never
    -- returns.
    headers_changed_at          timestamptz,

    -- Keys. Each is encrypted with AES-256-GCM (nonce, ciphertext and tag; the webhook's id is the
    -- associated data), and has the id of the master key beside it.
    secret                      bytea not null,
    secret_key_id               text not null,
    -- The ed25519 key pair. Null unless `signing` names it.
    private_key                 bytea,
    private_key_key_id          text,
    public_key                  bytea,
    -- The secret and the key pair before the last replacement. Null unless they were replaced with
    -- an overlap, and null again some time after `previous_expires_at`, from which on they sign
    -- nothing.
    previous_secret             bytea,
    previous_secret_key_id      text,
    previous_private_key        bytea,
    previous_private_key_key_id text,
    previous_public_key         bytea,
    previous_expires_at         timestamptz,

    -- State.
    active                      boolean not null default true,
    -- How often the webhook was switched on again. A delivery that was claimed under an earlier
    -- activation has been cancelled since.
    activation                  integer not null default 0,
    success_count               bigint not null default 0,
    failure_count               bigint not null default 0,
    consecutive_failures        bigint not null default 0,
    -- When the present run of failures began; null while there is none.
    failing_since               timestamptz,
    -- When the owner was last warned that the webhook is failing.
    warned_at                   timestamptz,
    last_triggered_at           timestamptz,
    disabled_at                 timestamptz,
    disabled_reason             text,
    created_at                  timestamptz not null default now(),
    updated_at                  timestamptz not null default now()
) with (fillfactor = 70); -- counters change with every batch: updated in place
create index webhook_user on walhook.webhook (user_id, id);
-- The published keys are listed in their own order, by anybody.
create index webhook_public_key on walhook.webhook (public_key) where public_key is not null;
create index webhook_previous_public_key on walhook.webhook (previous_public_key) where previous_public_key is not null;

-- The number of the last delivery of each webhook. Not in `webhook`, whose rows change with every
-- recorded batch: storing events locks these rows until the commit, and would wait for it. A
-- webhook gets its row with its first delivery.
create table walhook.webhook_sequence (
    webhook_id uuid primary key,
    last       bigint not null
) with (fillfactor = 50); -- changes with every batch: updated in place


-- 5. Deliveries

-- What waits, is retried, or was claimed; a row goes when its delivery ends. The table stays as
-- small as the backlog. A delivery that is sent at once and succeeds never has a row: see `handoff`.
create table walhook.delivery (
    id         uuid primary key,
    webhook_id uuid not null,
    event_id   uuid not null,
    -- The delivery's number within its webhook.
    sequence   bigint,
    -- Deliveries of one webhook with the same key are delivered one after the other, in the order
    -- of their numbers. All but the first are parked: due at infinity. Null for a delivery that
    -- neither waits for others nor makes them wait.
    order_key  bigint,
    round      smallint not null default 1,
    -- The number of the next attempt.
    attempt    smallint not null default 1,
    -- When the next attempt may begin. While leased: when the lease ends, so that a dead replica's
    -- work comes due by itself.
    due_at     timestamptz not null,
    -- Who holds it: a new id for every claim, so that an answer of an earlier holder changes
    -- nothing.
    lease      uuid
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
-- Fresh deliveries and retries are claimed apart: neither waits behind the other.
create index delivery_fresh on walhook.delivery (webhook_id, due_at) where attempt = 1;
create index delivery_retry on walhook.delivery (webhook_id, due_at) where attempt > 1;
-- The first delivery of a key, and the last.
create index delivery_order on walhook.delivery (webhook_id, order_key, sequence) where order_key is not null;

-- What one transaction handed off to its own process: deliveries without an order key, at their
-- first attempt. A row goes when all of them have been recorded. Some seconds after it was stored,
-- any replica makes rows of `delivery` of those that have not.
create table walhook.handoff (
    lease      uuid primary key,
    stored_at  timestamptz not null default now(),
    -- When the lease ends.
    due_at     timestamptz not null,
    -- One bit for each delivery, in the order of the arrays: set until its attempt is recorded.
    open       bit varying not null,
    ids        uuid[] not null,
    webhooks   uuid[] not null,
    events     uuid[] not null,
    sequences  bigint[] not null
) with (fillfactor = 50, toast_tuple_target = 256, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000);
-- Stored beside the row, so that recording an attempt does not write them again. Only the webhooks
-- repeat.
alter table walhook.handoff
    alter ids set storage external,
    alter events set storage external,
    alter sequences set storage external;

-- The deliveries of `handoff` that have not been recorded. There are at most those of some seconds.
create view walhook.handed_off as
select each.id, each.webhook_id, each.event_id, each.sequence, handoff.due_at, handoff.lease
from walhook.handoff
cross join lateral unnest(ids, webhooks, events, sequences) with ordinality as each (id, webhook_id, event_id, sequence, number)
where get_bit(handoff.open, each.number::integer - 1) = 1;

-- Everything that is still to be delivered.
create view walhook.pending as
select id, webhook_id, event_id, sequence, order_key, round, attempt, due_at, lease from walhook.delivery
union all
select id, webhook_id, event_id, sequence, null::bigint, 1::smallint, 1::smallint, due_at, lease from walhook.handed_off;

-- The round of a delivery that was redelivered; one that is not here is in its first.
create table walhook.delivery_round (
    delivery_id uuid primary key,
    round       smallint not null,
    -- The rounds that recoveries have started. The others were started by single redeliveries.
    recovered   smallint[] not null default '{}'
);

-- Events that a subscribed webhook did not get because it was inactive when they were stored. A row
-- goes when its delivery is created after all, or with its day.
create table walhook.missed_event (
    webhook_id uuid not null,
    event_id   uuid not null,
    primary key (webhook_id, event_id)
) partition by range (event_id);
create table walhook.missed_event_default partition of walhook.missed_event default;


-- 6. Attempts

-- A UUIDv7: the current milliseconds, then random bits, with two bits turning version 4 into 7.
create function walhook.uuid_v7() returns uuid language sql volatile as $$
    select encode(
        set_bit(set_bit(overlay(
            uuid_send(gen_random_uuid())
            placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
            from 1 for 6
        ), 52, 1), 53, 1),
        'hex'
    )::uuid
$$;

-- The attempt log: one row per attempt or cancellation.
create table walhook.attempt (
    id                 uuid not null,
    webhook_id         uuid not null,
    delivery_id        uuid not null,
    event_id           uuid not null,
    event_kind         text not null,
    -- The delivery's number within its webhook. Null for tests.
    sequence           bigint,
    round              smallint not null,
    attempt            smallint not null,
    test               boolean not null default false,
    -- To the millisecond: the time in X-Webhook-Timestamp.
    started_at         timestamptz not null,
    duration_ms        integer,
    outcome            text not null,
    response_status    smallint,
    error_kind         text,
    error_message      text,
    -- As sent, so that the log can show the request: the keys that signed it may have been
    -- replaced.
    url                text,
    signature          bytea,
    standard_signature bytea,
    -- The other signatures in the header webhook-signature, concatenated: 32 bytes with the
    -- previous secret, then 64 bytes for each ed25519 key. Null if there are none.
    more_signatures    bytea,
    -- The headers of the response, at most 2 KiB, as lines: a name, a colon, a space, a value.
    response_headers   bytea,
    -- The first 4 KiB of the response's body.
    response_body      bytea,
    -- How long the parts of the request took. The first three are null if an open connection was
    -- used, and each part that was not reached is.
    dns_ms             integer,
    connect_ms         integer,
    tls_ms             integer,
    -- From the connection to the head of the response.
    wait_ms            integer,
    primary key (webhook_id, id)
) partition by range (id);
create table walhook.attempt_default partition of walhook.attempt default;
-- Finds the attempts of an event, whose deliveries the API and the web UI show.
create index attempt_event on walhook.attempt (event_id);
-- Finds failures among many successes, which have no entry in it.
create index attempt_failed on walhook.attempt (webhook_id, id) where outcome <> 'delivered';

-- The outcomes of a webhook's attempts, by the hour in which they began. Tests are not counted.
create table walhook.webhook_hour (
    webhook_id         uuid not null,
    hour               timestamptz not null,
    delivered          bigint not null default 0,
    failed             bigint not null default 0,
    permanently_failed bigint not null default 0,
    cancelled          bigint not null default 0,
    -- How many requests took how long, in buckets that grow by the square root of two; null while
    -- none was sent.
    durations          integer[],
    -- How many of the permanent failures the operator's webhooks have.
    reported_failed    bigint not null default 0,
    primary key (webhook_id, hour)
) with (fillfactor = 70); -- the present hour changes with every batch: updated in place
create index webhook_hour_age on walhook.webhook_hour (hour);
create index webhook_hour_unreported on walhook.webhook_hour (hour) where permanently_failed > reported_failed;


-- 7. Jobs

-- Jobs are recoveries and replays. A replay delivers stored events to a webhook that never had
-- them. A job runs in chunks; each moves the position in the transaction that creates its
-- deliveries.
create table walhook.recovery (
    id            uuid primary key,
    webhook_id    uuid not null,
    kind          text not null,
    since         timestamptz not null,
    until         timestamptz not null,
    phase         text not null,
    -- The last id that was read in this phase.
    position      uuid not null default '00000000-0000-0000-0000-000000000000',
    -- The deliveries that were expected when the job was requested.
    total         bigint not null,
    -- The deliveries that were created so far.
    recovered     bigint not null default 0,
    -- When to look at it next.
    due_at        timestamptz not null default now(),
    created_at    timestamptz not null default now(),
    finished_at   timestamptz,
    -- When the job ended early: `finished_at` is set too.
    cancelled_at  timestamptz,

    -- Of a recovery: the outcomes of a delivery's last attempt that are recovered.
    outcomes      text[] not null,
    -- Of a recovery: whether missed events are delivered, after the attempt log has been read.
    missed        boolean not null,

    -- Of a replay.
    events        text[],
    -- Null for every label.
    label_ids     bigint[],
    -- The number of the last event that was stored when the replay was requested.
    last_sequence bigint not null default 0,
    -- The number of the last event that was read.
    sequence      bigint not null default 0,
    -- The deliveries that were created last, when, and how many at most.
    chunk         uuid[] not null default '{}',
    chunk_at      timestamptz,
    chunk_size    integer not null default 0
);
create index recovery_open on walhook.recovery (due_at) where finished_at is null;
create index recovery_webhook on walhook.recovery (webhook_id, id);

-- The events that a replay skips because the webhook has had a delivery of them. The rows are
-- removed after the replay has ended.
create table walhook.replay_exclusion (
    replay_id uuid not null,
    event_id  uuid not null,
    primary key (replay_id, event_id)
);


-- 8. Notices

-- E-mails to owners: stored in the transaction of what they report, and kept with their outcome
-- until they are old.
create table walhook.notice (
    id            uuid primary key,
    kind          text not null check (kind in ('disabled', 'warning')),
    -- When it happened.
    at            timestamptz not null default now(),
    webhook_id    uuid not null,
    user_id       text not null,
    -- The webhook as it was then.
    name          text not null,
    url           text not null,
    -- How its attempts failed: in words, and as in the attempt log.
    reason        text not null,
    error_kind    text not null,
    -- When the first of these failures was recorded.
    failing_since timestamptz,
    -- Failed attempts that counted, and how many disable the webhook.
    failures      bigint not null,
    threshold     bigint not null,
    -- Attempts to send it that failed.
    tries         integer not null default 0,
    -- When it may be sent. While leased: when the lease ends, so that a dead replica's work comes
    -- due by itself.
    due_at        timestamptz not null default now(),
    -- Who is sending it: a new id for every claim.
    lease         uuid,
    last_error    text,
    -- Null while it is still to be sent.
    ended_at      timestamptz,
    -- sent, or why it never will be.
    outcome       text check (outcome in ('sent', 'no_address', 'outdated')),
    -- Whether the operator's webhooks have what it reports.
    is_reported   boolean not null default false,
    check ((ended_at is null) = (outcome is null)),
    -- One for each disablement.
    unique (webhook_id, kind, at)
);
create index notice_due on walhook.notice (due_at) where ended_at is null;
create index notice_at on walhook.notice (at);
create index notice_unreported on walhook.notice (id) where not is_reported;
create index notice_disabled on walhook.notice (webhook_id, at) where kind = 'disabled';

-- Walhook's own occurrences for the operator's webhooks, one row for each URL, until they are
-- delivered. What occurred is in the rows that report it, each of which says whether it is here
-- already.
create table walhook.occurrence (
    id      uuid not null,
    url     text not null,
    kind    text not null,
    at      timestamptz not null default now(),
    data    json not null,
    -- The number of the next attempt.
    attempt smallint not null default 1,
    -- When it may begin. While leased: when the lease ends.
    due_at  timestamptz not null default now(),
    lease   uuid,
    primary key (id, url)
);
create index occurrence_due on walhook.occurrence (url, due_at);

-- When the next process looks for occurrences. Has one row.
create table walhook.occurrence_search (
    is_only boolean primary key default true check (is_only),
    due_at  timestamptz not null default now()
);
insert into walhook.occurrence_search default values;


-- 9. The API and the web UI

create table walhook.api_token (
    id         uuid primary key,
    user_id    text not null,
    name       text not null,
    -- full or read_only.
    scope      text not null default 'full',
    -- SHA-256 of the token; the token itself is nowhere.
    hash       bytea not null unique check (octet_length(hash) = 32),
    created_at timestamptz not null default now(),
    -- Null if it does not expire.
    expires_at timestamptz,
    -- To the minute.
    used_at    timestamptz,
    revoked_at timestamptz
);
create index api_token_user on walhook.api_token (user_id, id);

-- The tokens that are neither revoked nor expired.
create view walhook.valid_api_token as
    select id, user_id, scope, hash, used_at
    from walhook.api_token
    where revoked_at is null and coalesce(expires_at > now(), true);

-- Who is signed in to the web UI.
create table walhook.session (
    -- SHA-256 of the session's id; the id itself is in the browser's cookie alone.
    hash          bytea primary key check (octet_length(hash) = 32),
    user_id       text not null,
    -- The API token that was signed in with: its end is the session's. Null where the platform sent
    -- the user.
    token_id      uuid,
    created_at    timestamptz not null default now(),
    -- To the minute.
    used_at       timestamptz not null default now(),
    -- The webhook whose secret the session has just created or replaced, and until when its page
    -- may show it. The secret itself is stored in the webhook's row alone.
    reveals       uuid,
    reveals_until timestamptz
);
create index session_by_user on walhook.session (user_id, created_at);
create index session_by_age on walhook.session (created_at);

-- Sign-in links of the platform's that were used, until they would be refused by their age.
create table walhook.used_link (
    -- SHA-256 of the link's token without its signature, which may be written in more than one way.
    hash       bytea primary key check (octet_length(hash) = 32),
    expires_at timestamptz not null
);
create index used_link_by_age on walhook.used_link (expires_at);

-- Answers to requests with an Idempotency-Key.
create table walhook.idempotency (
    id          uuid primary key,
    user_id     text not null,
    -- SHA-256 of the key the client chose, and of the request's method, target and body.
    key_hash    bytea not null check (octet_length(key_hash) = 32),
    fingerprint bytea not null check (octet_length(fingerprint) = 32),
    claimed_at  timestamptz not null default now(),
    -- Until then the request is taken to be under way; afterwards its process is taken to be dead.
    held_until  timestamptz not null,
    -- AES-256-GCM: nonce, ciphertext and tag; the row's id is the associated data. Null while there
    -- is no answer yet.
    answer      bytea,
    key_id      text,
    unique (user_id, key_hash)
);
create index idempotency_claimed on walhook.idempotency (claimed_at);

-- Who changed what and when. The names of what was changed, never the values: some are secret.
create table walhook.audit (
    id         uuid primary key,
    at         timestamptz not null default now(),
    user_id    text not null,
    -- token, jwt, command_line, or automatic where nobody asked for it.
    via        text not null,
    -- The API token the request was made with.
    token_id   uuid,
    action     text not null,
    -- The webhook, token or erasure; of a sign-in, the first half of the session's hash.
    subject_id uuid not null,
    changed    text[] not null default '{}',
    -- The changes that the row stands for. Beyond a number of rows of a user and a day, further
    -- changes of the same kind are counted in one row, which describes the last of them.
    count      bigint not null default 1,
    -- When the last of them was made. Null if there is one.
    last_at    timestamptz
);
create index audit_user on walhook.audit (user_id, id);
create index audit_at on walhook.audit (at);


-- 10. Setup

-- The replica identities that setup found on the primary, which teardown restores.
create table walhook.replica_identity (
    table_oid  oid primary key,
    table_name text not null,
    identity   "char" not null,
    index_name text
);
