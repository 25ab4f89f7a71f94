-- Claims releases and returns those that were never distributed before. $1 release ids
insert into walhook.distributed_release (release_id)
select distinct unnest($1::bigint[])
on conflict do nothing
returning release_id
