-- What the management API remembers of requests: who changed what, and answers that may be asked for again.

-- Who changed what and when. The names of what was changed, never the values: some are secret.
create table walhook.audit (
    id         uuid primary key,
    at         timestamptz not null default now(),
    user_id    text not null,
    -- token, jwt or command_line.
    via        text not null,
    -- The API token the request was made with.
    token_id   uuid,
    action     text not null,
    -- The webhook or the API token that was changed.
    subject_id uuid not null,
    changed    text[] not null default '{}'
);
create index audit_user on walhook.audit (user_id, id);
create index audit_at on walhook.audit (at);

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
    -- AES-256-GCM: nonce, ciphertext and tag; the row's id is the associated data. Null while there is no answer yet.
    answer      bytea,
    key_id      text,
    unique (user_id, key_hash)
);
create index idempotency_claimed on walhook.idempotency (claimed_at);
