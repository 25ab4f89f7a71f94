-- Grown since 2005: a schema of its own, codes that a table and comments explain, `character(n)` with
-- padding, Y and N, no foreign keys in old tables, declarative partitions, and a table that inherits.
create schema dist;
create table dist.usr (usr_no integer primary key, e_mail character(60) not null);
create table dist.imprint (imprint_no integer primary key, usr_no integer not null references dist.usr, name character(40));
create table dist.album (
    album_no integer primary key, imprint_no integer not null references dist.imprint, cat_no character(20), title character(80),
    review_status character(1) not null, delivery_state smallint not null, hold character(1) not null default 'N'
);
comment on column dist.album.review_status is 'D = draft, R = in review, A = approved, X = rejected, C = changes requested';
comment on column dist.album.delivery_state is '0: pending, 4: live';
create table dist.shop (shop_no smallint primary key, name character(30));
create table dist.job_state (code smallint primary key, name character(20) not null);
create table dist.delivery_job (
    job_no bigint not null, album_no integer not null references dist.album, shop_no smallint references dist.shop,
    state smallint not null references dist.job_state, action character(10) not null, err_message character(80), created timestamp not null default now(),
    primary key (job_no)
) partition by range (job_no);
create table dist.delivery_job_1 partition of dist.delivery_job for values from (0) to (1000);
create table dist.delivery_job_2 partition of dist.delivery_job for values from (1000) to (2000);
create table dist.statement (
    statement_no bigint primary key, usr_no integer not null references dist.usr, statement_number character(12) not null, period_to date,
    cents bigint not null, usd_cents bigint not null, currency_code character(3), released boolean not null default false
);
create table dist.statement_2025 (primary key (statement_no)) inherits (dist.statement);

insert into dist.usr values (7, 'anna@example.com');
insert into dist.imprint values (31, 7, 'Imprint');
insert into dist.album (album_no, imprint_no, cat_no, title, review_status, delivery_state) values (100, 31, 'ONE-1', 'First', 'D', 0);
insert into dist.shop values (5, 'Example Music');
insert into dist.job_state values (10, 'scheduled'), (20, 'transcoding'), (30, 'delivered'), (91, 'failed'), (95, 'on ice');
insert into dist.delivery_job (job_no, album_no, shop_no, state, action) values (1, 100, 5, 10, 'DELIVERY'), (1001, 100, 5, 30, 'TAKEDOWN');
