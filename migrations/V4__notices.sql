-- Webhooks that keep failing are switched off by themselves, and their owners are told by e-mail.

-- When the owner was last warned that the webhook is failing.
alter table walhook.webhook add column warned_at timestamptz;

-- What owners are to be told: written in the transaction of what it tells of, and kept with its end until it is old.
create table walhook.notice (
    id          uuid primary key,
    kind        text not null check (kind in ('disabled', 'warning')),
    -- When it happened.
    at          timestamptz not null default now(),
    webhook_id  uuid not null,
    user_id     text not null,
    -- The webhook as it was then.
    name        text not null,
    url         text not null,
    -- How its attempts failed: in words, and in the log's.
    reason      text not null,
    error_kind  text not null,
    -- Failed attempts that counted, and how many switch the webhook off.
    failures    bigint not null,
    threshold   bigint not null,
    -- Tries to send it that failed.
    tries       integer not null default 0,
    -- When it may be sent. While leased: when the lease ends, so that a dead replica's work comes due by itself.
    due_at      timestamptz not null default now(),
    -- Who is sending it: a fresh id for every claim.
    lease       uuid,
    last_error  text,
    -- Null while it is still to be sent.
    ended_at    timestamptz,
    -- sent, or why it never will be.
    outcome     text check (outcome in ('sent', 'no_address')),
    check ((ended_at is null) = (outcome is null)),
    -- One for each disablement.
    unique (webhook_id, kind, at)
);
create index notice_due on walhook.notice (due_at) where ended_at is null;
create index notice_at on walhook.notice (at);

comment on column walhook.audit.via is 'token, jwt, command_line, or automatic where nobody asked for it';
