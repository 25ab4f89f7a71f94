-- name: forget
delete from walhook.replica_identity

-- name: list
select table_oid, table_name, identity::text, index_name
from walhook.replica_identity
order by table_name

-- name: remember
-- Keeps the first identity that was found, which teardown restores. $1 oid, $2 name, $3 identity,
-- $4 index
insert into walhook.replica_identity (table_oid, table_name, identity, index_name)
values ($1, $2, $3::text::"char", $4)
on conflict (table_oid) do nothing
