-- Returns the releases that were never distributed before. $1 release ids
select distinct release_id
from unnest($1::bigint[]) as distributed (release_id)
where not exists (select from walhook.distributed_release known where known.release_id = distributed.release_id)
