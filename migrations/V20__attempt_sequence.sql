-- The number of the attempt's delivery within its webhook. Null for tests, and for attempts of builds without this column.
alter table walhook.attempt add column sequence bigint;
