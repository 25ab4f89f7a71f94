-- The keys that sign a webhook's deliveries besides its secret. All are encrypted as the secret is, and have the id of the master key
-- beside them.
alter table walhook.webhook
    -- hmac, or hmac+ed25519.
    add column signing text not null default 'hmac',
    -- The ed25519 key pair. Null unless `signing` names it.
    add column private_key bytea,
    add column private_key_key_id text,
    add column public_key bytea,
    -- The secret and the key pair before the last replacement. Null unless they were replaced with an overlap, and null again some time
    -- after `previous_expires_at`, from which on they sign nothing.
    add column previous_secret bytea,
    add column previous_secret_key_id text,
    add column previous_private_key bytea,
    add column previous_private_key_key_id text,
    add column previous_public_key bytea,
    add column previous_expires_at timestamptz;
-- The published keys are listed in their own order, by anybody.
create index webhook_public_key on walhook.webhook (public_key) where public_key is not null;
create index webhook_previous_public_key on walhook.webhook (previous_public_key) where previous_public_key is not null;
