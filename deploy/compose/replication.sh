#!/bin/sh
# Prepares the log's server for its standby. Commits wait for it after the first restart, which ends this preparation. It is named: '*'
# would match the base backup too.
echo "host replication all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
echo "synchronous_standby_names = 'walreceiver'" >> "$PGDATA/postgresql.auto.conf"
