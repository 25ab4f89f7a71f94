-- Who is signed in to the user interface.

create table walhook.session (
    -- SHA-256 of the session's id; the id itself is in the browser's cookie alone.
    hash       bytea primary key check (octet_length(hash) = 32),
    user_id    text not null,
    -- The API token that was signed in with: its end is the session's. Null where the platform sent the user.
    token_id   uuid,
    created_at timestamptz not null default now(),
    -- To the minute.
    used_at    timestamptz not null default now()
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
