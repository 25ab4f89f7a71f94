-- The delivery's number within its webhook. Null for deliveries that builds without this column made.
alter table walhook.delivery add column sequence bigint;
