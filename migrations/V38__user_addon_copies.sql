-- How many rows of the platform's table say so: without a unique key there can be several, and one that is deleted revokes nothing.
alter table walhook.user_addon add column copies integer not null default 1;
