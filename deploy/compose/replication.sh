#!/bin/sh
# Prepares the log's server for its standby. Commits wait for it after the first restart, which ends this preparation.
echo "host replication all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
echo "synchronous_standby_names = '*'" >> "$PGDATA/postgresql.auto.conf"
