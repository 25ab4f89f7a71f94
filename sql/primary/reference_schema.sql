-- A music-distribution platform's tables under Walhook's own names. A platform with other names
-- maps them in its configuration. The demo and the tests run on this schema.

create table app_user (
    id bigint primary key,
    email text not null
);

create table user_addon (
    user_id bigint not null references app_user (id),
    addon text not null,
    primary key (user_id, addon)
);

create table label (
    id bigint primary key,
    user_id bigint references app_user (id),
    name text not null
);

create table release (
    id bigint primary key,
    label_id bigint not null references label (id),
    cat text,
    title text,
    review_status text not null,
    delivery_status text not null,
    review_issues jsonb,
    pre_review_hold boolean not null default false,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

create table outlet (
    id bigint primary key,
    name text
);

create table distro_queue (
    id bigint primary key,
    release_id bigint not null references release (id),
    outlet_id bigint references outlet (id),
    status text not null,
    takedown boolean not null default false,
    message text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

create table track (
    id bigint primary key,
    release_id bigint not null references release (id),
    isrc text not null,
    title text not null
);

create table transcoder_queue (
    id bigint primary key,
    track_id bigint not null references track (id),
    status text not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

create table transcoder_queue_file (
    id bigint primary key,
    transcoder_queue_id bigint not null references transcoder_queue (id),
    asset_type_id bigint not null,
    status text not null
);

create table payment (
    id bigint primary key,
    user_id bigint references app_user (id),
    invoice_number text not null,
    period_end date,
    amount numeric(14, 2) not null,
    total_due_usd numeric(14, 2) not null,
    currency char(3) default 'USD',
    status text not null
);

create table preflight_report (
    id bigint primary key,
    release_id bigint not null references release (id),
    generated_at timestamptz,
    profile_name text not null,
    profile_version bigint not null,
    blocking bigint not null,
    informational bigint not null,
    requires_feedback bigint not null
);

create table stream_radar_flag (
    id bigint primary key,
    dsp text not null,
    isrc text not null,
    release_id bigint not null references release (id),
    track_id bigint references track (id),
    severity text not null,
    status text not null,
    first_detected_at timestamptz,
    last_detected_at timestamptz,
    estimated_affected_streams bigint,
    published_at timestamptz not null,
    resolved_at timestamptz
);
