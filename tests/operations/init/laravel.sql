-- As Laravel's migrations create it: no table of labels, `enum()` as text with a check, statuses as
-- small integers, times without a time zone, money in cents, soft deletes.
create table users (
    id bigserial primary key,
    name varchar(255) not null,
    email varchar(255) not null,
    password varchar(255) not null,
    created_at timestamp(0) without time zone,
    updated_at timestamp(0) without time zone,
    constraint users_email_unique unique (email)
);
create table albums (
    id bigserial primary key,
    uuid uuid not null,
    user_id bigint not null,
    title varchar(255) not null,
    upc varchar(14),
    status smallint not null default 0,
    distributed_at timestamp(0) without time zone,
    created_at timestamp(0) without time zone,
    updated_at timestamp(0) without time zone,
    deleted_at timestamp(0) without time zone,
    constraint albums_user_id_foreign foreign key (user_id) references users (id) on delete cascade
);
create table tracks (
    id bigserial primary key,
    album_id bigint not null references albums (id),
    isrc varchar(12) not null,
    created_at timestamp(0) without time zone
);
create table deliveries (
    id bigserial primary key,
    album_id bigint not null references albums (id),
    store varchar(255) not null,
    status smallint not null default 0,
    type varchar(255) not null default 'delivery',
    failure_reason text,
    created_at timestamp(0) without time zone,
    updated_at timestamp(0) without time zone,
    deleted_at timestamp(0) without time zone,
    constraint deliveries_store_check check (((store)::text = any ((array['spotify'::character varying, 'apple'::character varying])::text[]))),
    constraint deliveries_type_check check (((type)::text = any ((array['delivery'::character varying, 'takedown'::character varying])::text[])))
);
create table payouts (
    id bigserial primary key,
    user_id bigint not null references users (id),
    number varchar(255) not null,
    amount_cents bigint not null,
    currency char(3) not null default 'USD',
    issued_at timestamp(0) without time zone,
    created_at timestamp(0) without time zone
);
create table migrations (id serial primary key, migration varchar(255) not null, batch integer not null);
create table failed_jobs (id bigserial primary key, uuid varchar(255) not null, payload text not null, failed_at timestamp(0) default now());
create table personal_access_tokens (id bigserial primary key, tokenable_type varchar(255) not null, tokenable_id bigint not null, token varchar(64) not null);

insert into users (id, name, email, password) values (7, 'Anna', 'anna@example.com', '');
insert into albums (id, uuid, user_id, title, upc, status) values (100, gen_random_uuid(), 7, 'First', '0196006123456', 0);
insert into deliveries (id, album_id, store, status) values (1, 100, 'spotify', 0), (2, 100, 'apple', 3);
