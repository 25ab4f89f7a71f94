-- The map of cells: in the log's store all cells, in a cell's store its own row.

-- name: list
-- Lists the cells in the order of their shards.
select name, first_shard, last_shard, store_id as store, epoch from walhook.cell order by first_shard

-- name: store_id
-- The id of this store.
select store_id from walhook.event_sequence

-- name: remove_older
-- Removes from the map what others had of a cell's shards in earlier epochs. $1 the cell's name, $2
-- and $3 its first and last shard, $4 its epoch
delete from walhook.cell where name <> $1 and first_shard <= $3 and last_shard >= $2 and epoch < $4

-- name: put
-- Inserts a cell, or changes the shards of one with the same store. Those of another must have been
-- taken from it before. $1 name, $2 and $3 the first and the last shard, $4 the id of its store, $5
-- epoch
insert into walhook.cell as cell (name, first_shard, last_shard, store_id, epoch) values ($1, $2, $3, $4, $5)
on conflict (name) do update
set first_shard = excluded.first_shard, last_shard = excluded.last_shard, epoch = excluded.epoch
where cell.store_id = excluded.store_id

-- name: delete_others
-- Leaves a cell's own row in its store. $1 its name
delete from walhook.cell where name <> $1

-- name: end_claims
-- Ends the claim on reading a log: no batch is stored that was read with other shards.
update walhook.checkpoint set reader = null where log_store is not null

-- name: set_store_id
-- Gives a store its id, and makes a clone forget what its original still reports to the operator.
-- Returns a row if the id is new. $1 the id
with cloned as (update walhook.event_sequence set store_id = $1 where store_id <> $1 returning store_id)
delete from walhook.occurrence where (select count(*) from cloned) > 0

-- name: remove_moved
-- Removes from a store what could act for users of other shards: webhooks with their pending
-- deliveries and jobs, tokens, sessions and notices. Events and attempts stay until their days are
-- dropped. $1 and $2 the store's first and last shard
with moved as materialized (select id from walhook.webhook where walhook.shard(user_id) not between $1 and $2),
tokens as (delete from walhook.api_token where walhook.shard(user_id) not between $1 and $2),
sessions as (delete from walhook.session where walhook.shard(user_id) not between $1 and $2),
answers as (delete from walhook.idempotency where walhook.shard(user_id) not between $1 and $2),
notices as (delete from walhook.notice where walhook.shard(user_id) not between $1 and $2),
jobs as (delete from walhook.recovery where webhook_id in (select id from moved) returning id),
exclusions as (delete from walhook.replay_exclusion where replay_id in (select id from jobs)),
hours as (delete from walhook.webhook_hour where webhook_id in (select id from moved)),
counters as (delete from walhook.webhook_sequence where webhook_id in (select id from moved)),
deliveries as (delete from walhook.delivery where webhook_id in (select id from moved))
delete from walhook.webhook where id in (select id from moved)

-- name: claim
-- Makes this session the only one that reads the log for a cell. If its client dies unnoticed, the
-- server ends the session within some 20 seconds, and another process can continue. $1 name
select pg_try_advisory_lock(hashtextextended('walhook cell ' || $1::text, 0))
from (
    select set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '5', false),
        set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '20000', false)
    offset 0
) as settings
