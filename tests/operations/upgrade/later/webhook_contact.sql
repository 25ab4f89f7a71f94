alter table webhook add column contact text not null default '';
