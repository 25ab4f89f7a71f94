#!/bin/sh
# Granian 2.8.9: a stop or a reload waits for requests, but drops what an application does after its response.
#
# Guess: the graceful stop waits until the application has returned, background tasks of Starlette and FastAPI included, as Uvicorn does.
# Or it cancels them, so that they can at least store what is left.
# Seen: it waits for responses only. With SIGTERM, and with SIGHUP for the workers that are replaced, the application is left where it
# awaits: nothing is raised in it, no `finally` runs, and nothing is logged. A webhook delivery that was answered with 202 and is processed
# in a background task is lost with each deployment, and is not sent again.
#
# Needs Linux, Python 3.10 or newer with venv, and PyPI. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check granian==2.8.9 uvicorn==0.54.0 starlette==1.10.0
cat >app.py <<'PY'
import asyncio
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.routing import Route


def log(line):
    with open("log", "a") as file:
        file.write(line + "\n")


async def work():
    log("started")
    try:
        await asyncio.sleep(6)
        log("processed")
    finally:
        log("left")


async def before(request):
    await work()
    return Response(status_code=202)


async def after(request):
    return Response(status_code=202, background=BackgroundTask(work))


@asynccontextmanager
async def lifespan(app):
    yield
    log("lifespan ends")


routes = [
    Route("/ready", lambda request: Response()),
    Route("/before", before, methods=["POST"]),
    Route("/after", after, methods=["POST"]),
]
app = Starlette(routes=routes, lifespan=lifespan)
PY
cat >client.py <<'PY'
import http.client
import sys

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request(sys.argv[2], sys.argv[3])
print(connection.getresponse().status)
PY
port=$(venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# Sends a request, then a signal while the work goes on. Prints the status and what the application logged. $1 the signal, $2 the path, then the server
stopped() {
    signal=$1 path=$2
    shift 2
    : >log
    "$@" >out 2>&1 &
    server=$!
    until venv/bin/python client.py "$port" GET /ready >/dev/null 2>&1; do sleep 0.1; done
    venv/bin/python client.py "$port" POST "$path" >status &
    client=$!
    until grep -qx started log; do sleep 0.1; done
    kill -s "$signal" "$server"
    wait "$client"
    if [ "$signal" = HUP ]; then sleep 8; cp log seen; kill "$server"; fi
    { wait "$server" || true; } 2>/dev/null
    server=
    [ "$signal" = HUP ] || cp log seen
    echo "$(cat status): $(tr '\n' ',' <seen | sed 's/,$//; s/,/, /g')"
}
granian="venv/bin/granian --interface asgi --host 127.0.0.1 --port $port app:app"
uvicorn="venv/bin/uvicorn --host 127.0.0.1 --port $port app:app"
uvicorn_after=$(stopped TERM /after $uvicorn)
before=$(stopped TERM /before $granian)
after=$(stopped TERM /after $granian)
replaced=$(stopped HUP /after $granian)
echo "Uvicorn 0.54.0, SIGTERM, work after the response: $uvicorn_after
Granian 2.8.9, SIGTERM, work before the response: $before
Granian 2.8.9, SIGTERM, work after the response: $after
Granian 2.8.9, SIGHUP, work after the response: $replaced"
[ "$uvicorn_after" = '202: started, processed, left, lifespan ends' ]
[ "$before" = '202: started, processed, left, lifespan ends' ]
[ "$after" = '202: started, lifespan ends' ]
[ "$replaced" = '202: started, lifespan ends' ]
