#!/bin/sh
# Bun 1.4.5: a handler of node:http that throws is answered with 200, also if it has set another status.
#
# Guess: Bun does as Node does: the exception is uncaught, the process ends, and the client's connection closes without a response. Where
# `uncaughtException` is handled, the request stays without a response.
# Seen: the client gets `200 OK` with an empty body, before the process ends. With a handler of `uncaughtException` the server goes on, and
# answers each such request with 200. `response.statusCode = 503` and `response.writeHead(503)` before the exception change nothing.
# An exception in a later callback, as of `request.on("end")`, is handled as in Node. A webhook delivery that was not processed counts as
# acknowledged, and is not sent again.
#
# Needs Linux on x86-64, Node 20 and npm. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent @oven/bun-linux-x64-baseline@1.4.5 >/dev/null
tar -xzf ./*.tgz

cat >receiver.mjs <<'JS'
import { createServer } from "node:http";

function fail() {
  throw new Error("not processed");
}
const handlers = {
  "/throws": () => fail(),
  "/after-status-code": (request, response) => {
    response.statusCode = 503;
    fail();
  },
  "/after-write-head": (request, response) => {
    response.writeHead(503);
    fail();
  },
  "/in-end": (request) => {
    request.resume();
    request.on("end", fail);
  },
};
if (process.argv[2] === "handled") process.on("uncaughtException", (error) => console.error(error.message));
const server = createServer((request, response) => handlers[request.url](request, response));
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
JS
cat >client.mjs <<'JS'
import { request } from "node:http";

// Sends a request and returns the status, or that there is none within a second.
function status(port, path) {
  return new Promise((resolve) => {
    const outgoing = request({ host: "127.0.0.1", port, path, method: "POST", agent: false, timeout: 1000 });
    outgoing.on("response", (response) => resolve(response.resume().statusCode));
    outgoing.on("timeout", () => outgoing.destroy(new Error("timeout")));
    outgoing.on("error", () => resolve("none"));
    outgoing.end("{}");
  });
}

const [port, ...paths] = process.argv.slice(2);
const results = [];
for (const path of paths) results.push(`${path} ${await status(port, path)}`);
console.log(results.join(", "));
JS

# Starts a receiver and prints the statuses of its responses. $1 the runtime, $2 whether it handles uncaught exceptions, then the paths
statuses() {
    runtime=$1 handled=$2
    shift 2
    "$runtime" receiver.mjs "$handled" >port 2>error &
    server=$!
    until [ -s port ]; do sleep 0.1; done
    node client.mjs "$(cat port)" "$@"
    if [ "$handled" = handled ]; then kill "$server"; fi
    { wait "$server" || true; } 2>/dev/null
    rm port
}

bun=package/bin/bun
for runtime in "$bun" node; do
    echo "$(basename "$runtime") $("$runtime" --version):"
    statuses "$runtime" ends /throws
    statuses "$runtime" handled /throws /after-status-code /after-write-head /in-end
done | tee seen
cat >expected <<EOF
bun 1.4.5:
/throws 200
/throws 200, /after-status-code 200, /after-write-head 200, /in-end none
node $(node --version):
/throws none
/throws none, /after-status-code none, /after-write-head none, /in-end none
EOF
cmp -s seen expected
