-- $1 ids of releases
insert into walhook.distributed_release (release_id)
select unnest($1::bigint[])
on conflict do nothing
