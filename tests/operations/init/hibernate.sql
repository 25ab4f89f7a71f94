-- As Hibernate creates it: singular names, sequences of 50 ids beside the table, an ordinal enum as
-- smallint with a check of its range, a string enum with a check of its names, timestamp(6).
create sequence release_entry_seq start with 1 increment by 50;
create sequence delivery_job_seq start with 1 increment by 50;
create table customer (id bigint not null primary key, email varchar(255) not null, version integer not null default 0);
create table record_label (
    id bigint not null primary key, name varchar(255), owner_id bigint not null,
    constraint fk8j2 foreign key (owner_id) references customer (id)
);
create table album (
    id bigint not null primary key,
    catalogue_number varchar(255), name varchar(255), record_label_id bigint not null,
    review_status varchar(255) not null check (review_status in ('DRAFT', 'UNDER_REVIEW', 'ACCEPTED', 'DECLINED')),
    delivery_status varchar(255) not null check (delivery_status in ('PENDING', 'LIVE')),
    version integer not null default 0,
    constraint fk9k3 foreign key (record_label_id) references record_label (id)
);
create table retailer (id bigint not null primary key, name varchar(255));
create table delivery_job (
    id bigint not null primary key, album_id bigint not null, retailer_id bigint, status smallint not null check (status between 0 and 4),
    takedown boolean not null, last_error varchar(255), updated_on timestamp(6) with time zone,
    constraint fk1a foreign key (album_id) references album (id), constraint fk1b foreign key (retailer_id) references retailer (id)
);
create table royalty_statement (
    id bigint not null primary key, customer_id bigint not null references customer (id), statement_number varchar(255) not null,
    period_end date, total numeric(38, 2) not null, total_usd numeric(38, 2) not null, currency varchar(3),
    status varchar(255) not null check (status in ('OPEN', 'ISSUED', 'PAID'))
);

insert into customer (id, email) values (7, 'anna@example.com');
insert into record_label values (31, 'Label', 7);
insert into album (id, catalogue_number, name, record_label_id, review_status, delivery_status) values (100, 'ONE-1', 'First', 31, 'DRAFT', 'PENDING');
insert into retailer values (5, 'Example Music');
insert into delivery_job (id, album_id, retailer_id, status, takedown) values (1, 100, 5, 0, false), (2, 100, 5, 3, false);
