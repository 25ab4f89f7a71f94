#!/bin/sh
# gunicorn 27.0.1: after each response, a sync worker waits up to 2 s for the client to close, and serves nobody else meanwhile.
#
# Guess: a sync worker answers with `Connection: close`, closes the connection, and takes the next one at once.
# Seen: it closes its own side only, and then reads until the client has closed the other (`close_graceful`, 2 s at most). A client that
# leaves its connection open after the response, such as a pool that notices the end with its next request, delays the next client by 2 s.
#
# Needs Linux, Python 3.10 or newer with venv, and PyPI. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" || true
    rm -rf "$work"
}
trap cleanup EXIT

cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check gunicorn==27.0.1
cat >app.py <<'PY'
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
PY
venv/bin/gunicorn --bind unix:"$work/socket" --no-control-socket app:app 2>log &
server=$!
until [ -S socket ]; do sleep 0.1; done

venv/bin/python - <<'PY'
import socket
import time


def get():
    """Sends a request, and returns the connection and how long the response took."""
    client = socket.socket(socket.AF_UNIX)
    client.connect("socket")
    start = time.monotonic()
    client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    response = client.recv(65536)
    assert response.startswith(b"HTTP/1.1 200 OK") and b"Connection: close" in response, response
    return client, time.monotonic() - start


get()[0].close()  # The worker has started.
first, _ = get()
first.close()
second, after_closed = get()
_, after_open = get()
print(f"gunicorn 27.0.1: the next response takes {after_closed:.1f} s if the client before has closed, {after_open:.1f} s if not")
assert after_closed < 1 < after_open
PY
