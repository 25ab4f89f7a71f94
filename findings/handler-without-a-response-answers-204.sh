#!/bin/sh
# Bun 1.4.5: a handler of Bun.serve that returns no Response is answered with 204, or with 200 outside production.
#
# Guess: a handler that forgets to return, or returns something else than a Response, is a fault as one that throws: the client gets 500, and
# `error` can decide otherwise. Deno and Hono respond with 500.
# Seen: the client gets 204 (NODE_ENV=production) or 200 with "Welcome to Bun!", also for `return { status: 401 }`, and `error` is not called.
# There is a line on standard error. A webhook delivery that was rejected or not processed counts as acknowledged, and is not sent again.
#
# Needs Linux on x86-64 and npm. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent @oven/bun-linux-x64-baseline@1.4.5 >/dev/null
tar -xzf ./*.tgz

cat >receiver.mjs <<'JS'
const handlers = {
  "/nothing": () => {},
  "/late": async (request) => void (await request.text()),
  "/object": () => ({ status: 401 }),
  "/throws": () => {
    throw new Error("not processed");
  },
};
let errors = 0;

const server = Bun.serve({
  port: 0,
  fetch: (request) => handlers[new URL(request.url).pathname](request),
  error() {
    errors += 1;
    return new Response("failed", { status: 500 });
  },
});

const results = [];
for (const path of Object.keys(handlers)) {
  errors = 0;
  const response = await fetch(new URL(path, server.url), { method: "POST", body: "{}" });
  results.push(`${path} ${response.status}, errors ${errors}`);
}
console.log(results.join("; "));
server.stop();
JS

version=$(package/bin/bun --version)
development=$(NODE_ENV=development package/bin/bun receiver.mjs 2>/dev/null)
production=$(NODE_ENV=production package/bin/bun receiver.mjs 2>/dev/null)
echo "Bun $version
development: $development
production: $production"
[ "$development" = '/nothing 200, errors 0; /late 200, errors 0; /object 200, errors 0; /throws 500, errors 1' ]
[ "$production" = '/nothing 204, errors 0; /late 204, errors 0; /object 204, errors 0; /throws 500, errors 1' ]
