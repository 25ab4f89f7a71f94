-- Which of these releases are distributed for the first time. $1 release ids
insert into walhook.distributed_release (release_id)
select distinct unnest($1::bigint[])
on conflict do nothing
returning release_id
