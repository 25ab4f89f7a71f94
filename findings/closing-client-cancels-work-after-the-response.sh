#!/bin/sh
# Sanic 25.12.1: a client that closes its connection cancels what a handler does after its complete response.
#
# Guess: once `response.eof()` has returned, the client has its answer, and what it does with the connection has no effect on the handler. So
# it is with aiohttp, and with background tasks on Uvicorn.
# Seen: one task serves the connection, and the end of the connection cancels the task, wherever the handler is. If the client closes, the
# work after the response gets CancelledError, and no error is logged; if the client keeps the connection, the work is done. A webhook
# delivery that was answered with 202 is lost if the sender closes idle connections before the work is done, and is not sent again.
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
venv/bin/pip install --quiet --disable-pip-version-check sanic==25.12.1 aiohttp==3.14.5
cat >work.py <<'PY'
import asyncio


async def process():
    """Takes two seconds. Writes down how it ended."""
    outcome = "cancelled"
    try:
        await asyncio.sleep(2)
        outcome = "processed"
    finally:
        with open("outcome", "w") as file:
            file.write(outcome)
PY
cat >sanic_app.py <<'PY'
from sanic import Sanic

from work import process

app = Sanic("receiver")


@app.post("/")
async def receive(request):
    response = await request.respond(status=202)
    await response.send("ok")
    await response.eof()
    await process()


app.run(unix="socket", single_process=True, access_log=False, motd=False)
PY
cat >aiohttp_app.py <<'PY'
from aiohttp import web

from work import process


async def receive(request):
    response = web.StreamResponse(status=202)
    await response.prepare(request)
    await response.write(b"ok")
    await response.write_eof()
    await process()
    return response


app = web.Application()
app.router.add_post("/", receive)
web.run_app(app, path="socket", print=None)
PY
cat >client.py <<'PY'
import os
import socket
import time


def post():
    """Sends a request, and returns its connection after the complete response."""
    client = socket.socket(socket.AF_UNIX)
    client.connect("socket")
    client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
    response = b""
    while not response.endswith(b"0\r\n\r\n"):
        response += client.recv(65536)
    assert response.startswith(b"HTTP/1.1 202 "), response
    return client


def outcome():
    """Waits for the work to end, and returns how it ended."""
    while not os.path.exists("outcome") or not os.path.getsize("outcome"):
        time.sleep(0.1)
    with open("outcome") as file:
        outcome = file.read()
    os.remove("outcome")
    return outcome


kept = post()
stays = outcome()
kept.close()
post().close()
print(f"client stays: {stays}; client closes: {outcome()}")
PY

serve() {
    venv/bin/python "$1" >>log 2>&1 &
    server=$!
    until [ -S socket ]; do sleep 0.1; done
    venv/bin/python client.py
    kill "$server"
    { wait "$server" || true; } 2>/dev/null
    server=
    rm -f socket
}
serve aiohttp_app.py >aiohttp
serve sanic_app.py >sanic
echo "aiohttp 3.14.5: $(cat aiohttp)
Sanic 25.12.1: $(cat sanic)"
[ "$(cat aiohttp)" = 'client stays: processed; client closes: processed' ]
[ "$(cat sanic)" = 'client stays: processed; client closes: cancelled' ]
