-- As Rails creates it: plural names, `bigint` keys, `timestamp(6) without time zone`, statuses as text.
create table users (
    id bigserial primary key,
    email character varying not null,
    created_at timestamp(6) without time zone not null default now(),
    updated_at timestamp(6) without time zone not null default now()
);
create table accounts (
    id bigserial primary key,
    name character varying not null,
    owner_id bigint not null,
    created_at timestamp(6) without time zone not null default now(),
    constraint fk_rails_1 foreign key (owner_id) references users (id)
);
create table labels (
    id bigserial primary key,
    name character varying not null,
    account_id bigint not null,
    created_at timestamp(6) without time zone not null default now(),
    constraint fk_rails_2 foreign key (account_id) references accounts (id)
);
create table releases (
    id bigserial primary key,
    label_id bigint not null,
    title character varying,
    catalog_number character varying,
    review_state character varying not null default 'draft',
    distribution_state character varying not null default 'pending',
    created_at timestamp(6) without time zone not null default now(),
    discarded_at timestamp(6) without time zone,
    constraint fk_rails_3 foreign key (label_id) references labels (id)
);
create table stores (id bigserial primary key, name character varying not null, slug character varying not null);
create table release_stores (
    id bigserial primary key,
    release_id bigint not null references releases (id),
    store_id bigint not null references stores (id),
    state character varying not null default 'pending',
    takedown boolean not null default false,
    error_message text,
    created_at timestamp(6) without time zone not null default now()
);
create table release_store_events (
    id bigserial primary key, release_store_id bigint not null references release_stores (id), state character varying not null
);
create table statements (
    id bigserial primary key,
    account_id bigint not null references accounts (id),
    invoice_number character varying not null,
    period_end date,
    amount numeric(14, 2) not null,
    amount_usd numeric(14, 2) not null,
    currency character varying not null,
    state character varying not null default 'draft'
);
create table schema_migrations (version character varying primary key);
create table ar_internal_metadata (key character varying primary key, value character varying);
create table active_storage_blobs (id bigserial primary key, key character varying not null, filename character varying not null);

insert into users (id, email) values (7, 'anna@example.com');
insert into accounts (id, name, owner_id) values (3, 'One', 7);
insert into labels (id, name, account_id) values (31, 'Label', 3);
insert into releases (id, label_id, title, catalog_number, review_state)
values (100, 31, 'First', 'ONE-1', 'In Review'), (101, 31, 'Second', 'ONE-2', 'changes_requested'), (102, 31, 'Third', null, 'draft');
insert into stores values (5, 'Example Music', 'example');
insert into release_stores (id, release_id, store_id, state) values (1, 100, 5, 'queued'), (2, 101, 5, 'delivered'), (3, 102, 5, 'failed');
