alter table webhook add column description text not null default '';
