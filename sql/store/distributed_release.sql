-- name: claim
-- Claims releases and returns those that were never distributed before. $1 release ids
insert into walhook.distributed_release (release_id)
select distinct unnest($1::bigint[])
on conflict do nothing
returning release_id

-- name: new
-- Returns the releases that were never distributed before. $1 release ids
select distinct release_id
from unnest($1::bigint[]) as distributed (release_id)
where not exists (select from walhook.distributed_release known where known.release_id = distributed.release_id)

-- name: seed
-- $1 ids of releases
insert into walhook.distributed_release (release_id)
select unnest($1::bigint[])
on conflict do nothing
