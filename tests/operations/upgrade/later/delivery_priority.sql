alter table delivery add column priority smallint not null default 0;
create index delivery_priority on delivery (priority, due_at);
