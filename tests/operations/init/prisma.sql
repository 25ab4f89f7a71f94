-- As Prisma creates it: quoted names in capitals, enums, `timestamp(3)`, cuids as keys of users,
-- integers as keys of what events name.
create type "ReviewStatus" as enum ('DRAFT', 'IN_REVIEW', 'APPROVED', 'REJECTED', 'CHANGES_REQUESTED');
create type "DeliveryStatus" as enum ('PENDING', 'TRANSCODING', 'DELIVERED', 'FAILED');
create table "User" ("id" text not null, "email" text not null, "createdAt" timestamp(3) not null default current_timestamp, constraint "User_pkey" primary key ("id"));
create unique index "User_email_key" on "User" ("email");
create table "Label" (
    "id" serial not null, "name" text not null, "ownerId" text not null,
    constraint "Label_pkey" primary key ("id"),
    constraint "Label_ownerId_fkey" foreign key ("ownerId") references "User" ("id") on delete restrict on update cascade
);
create table "Release" (
    "id" serial not null, "publicId" text not null, "labelId" integer not null, "title" text, "catalogNumber" text,
    "reviewStatus" "ReviewStatus" not null default 'DRAFT', "distributedAt" timestamp(3), "deletedAt" timestamp(3),
    constraint "Release_pkey" primary key ("id"),
    constraint "Release_labelId_fkey" foreign key ("labelId") references "Label" ("id") on delete restrict on update cascade
);
create unique index "Release_publicId_key" on "Release" ("publicId");
create table "Outlet" ("id" serial not null, "name" text not null, constraint "Outlet_pkey" primary key ("id"));
create table "ReleaseDelivery" (
    "id" serial not null, "releaseId" integer not null, "outletId" integer not null, "status" "DeliveryStatus" not null default 'PENDING',
    "isTakedown" boolean not null default false, "errorMessage" text, "updatedAt" timestamp(3) not null default current_timestamp,
    constraint "ReleaseDelivery_pkey" primary key ("id"),
    constraint "ReleaseDelivery_releaseId_fkey" foreign key ("releaseId") references "Release" ("id") on delete restrict on update cascade,
    constraint "ReleaseDelivery_outletId_fkey" foreign key ("outletId") references "Outlet" ("id") on delete restrict on update cascade
);
create table "Track" (
    "id" text not null, "releaseId" integer not null, "isrc" text not null,
    constraint "Track_pkey" primary key ("id"),
    constraint "Track_releaseId_fkey" foreign key ("releaseId") references "Release" ("id") on delete restrict on update cascade
);
create table "_prisma_migrations" (id varchar(36) not null primary key, checksum varchar(64) not null, migration_name varchar(255) not null);

insert into "User" ("id", "email") values ('ckv1a2b3c0000qz', 'anna@example.com');
insert into "Label" ("id", "name", "ownerId") values (31, 'Label', 'ckv1a2b3c0000qz');
insert into "Release" ("id", "publicId", "labelId", "title", "catalogNumber") values (100, 'clx0', 31, 'First', 'ONE-1');
insert into "Outlet" ("id", "name") values (5, 'Example Music');
insert into "ReleaseDelivery" ("id", "releaseId", "outletId") values (1, 100, 5);
insert into "Track" ("id", "releaseId", "isrc") values ('cltrack01', 100, 'XXA012600001');
