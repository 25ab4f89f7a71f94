-- What a webhook may have besides its name, its URL and its events. Builds without these columns ignore them.
alter table walhook.webhook
    add column description        text,
    -- Strings by name, for the owner's own use.
    add column metadata           jsonb not null default '{}',
    -- Which of the subscribed events are delivered: an object with lists of label_ids, outlet_ids and statuses. Null: all.
    add column filter             jsonb,
    -- The names of the custom headers. Names and values together are encrypted in `headers`, as the secret is, but with associated
    -- data of their own.
    add column header_names       text[] not null default '{}',
    add column headers            bytea,
    add column headers_key_id     text,
    -- When the custom headers last changed. Never reset, so that a version of the settings never returns.
    add column headers_changed_at timestamptz;
