-- $1 tables
insert into walhook.ledger_complete (relation)
select unnest($1::smallint[])
on conflict do nothing
