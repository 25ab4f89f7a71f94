#!/usr/bin/python3
"""Stands in for pg_basebackup where only PostgreSQL's server programs are installed: copies the files of a server on this machine.

Called by Patroni as `pg_basebackup --pgdata=DIRECTORY -X stream --dbname=CONNINFO`.
"""

import os
import shutil
import sys

import psycopg2

options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--") and "=" in argument)
target = options["pgdata"]
session = psycopg2.connect(options["dbname"], user="postgres", dbname="postgres", password=os.environ["PGPASSWORD"])
session.autocommit = True
cursor = session.cursor()
cursor.execute("select pg_backup_start('replica', true), current_setting('data_directory')")
source = cursor.fetchone()[1]
# Files may disappear while they are copied. WAL of the backup is kept by the slot of the new standby, from which it is streamed.
skipped = {"postmaster.pid", "postmaster.opts", "pg_replslot", "pg_stat_tmp", "pg_notify", "pg_subtrans", "pg_dynshmem"}


def skip(directory, names):
    return [name for name in names if directory == source and name in skipped or name.startswith("pgsql_tmp")]


def copy(file, to):
    try:
        shutil.copy2(file, to)
    except FileNotFoundError:
        pass


os.umask(0o077)
shutil.copytree(source, target, symlinks=True, ignore=skip, copy_function=copy, dirs_exist_ok=True)
for name in skipped - {"postmaster.pid", "postmaster.opts"}:
    os.makedirs(os.path.join(target, name), exist_ok=True)
cursor.execute("select labelfile from pg_backup_stop(false)")
with open(os.path.join(target, "backup_label"), "w") as label:
    label.write(cursor.fetchone()[0])
