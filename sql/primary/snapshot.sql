-- name: delivery_statuses
-- The ids and delivery statuses of all releases
select {columns}
from {table} as this

-- name: take
-- The current snapshot and the current position in the WAL
select pg_current_snapshot()::text as snapshot, pg_current_wal_insert_lsn() as inserted,
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) as timeline,
    (select system_identifier from pg_catalog.pg_control_system()) as system_identifier

-- name: user_addons
-- The add-ons of every user
select {columns}
from {table} as this
where {condition}

-- name: watched_rows
-- Declares a cursor over a watched table's rows: id and watched columns, ordered by id
declare watched_rows no scroll cursor for
select this.{id}::text, {columns}
from {table} as this
where {condition}
order by {order}

-- name: fetch_watched_rows
-- The next rows of the cursor
fetch forward 5000 from watched_rows
