#!/bin/sh
# Elysia 1.4.30: a handler that is bound to its object cannot set the status, and its context has no body.
#
# Guess: a route's handler is a function that is called with the context. Whether it is a function, a bound method, or behind a Proxy, as of
# tracing and test tools, makes no difference.
# Seen: Elysia reads the source text of the handler to find what it uses, and leaves out the rest. A bound function or a Proxy has no text
# but `[native code]`. So `set.status = 503` is ignored, and the client gets 200 with the text that explains the failure. `body` and
# `headers` are undefined. `(context) => handle({ ...context })` hides the use as well. There is no warning. With a returned
# `status(503)`, or with `aot: false`, the status is sent. A webhook delivery that such a handler rejects or postpones counts as
# acknowledged, and is not sent again.
#
# Needs Linux on x86-64 and npm. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm pack --silent @oven/bun-linux-x64-baseline@1.4.5 >/dev/null
tar -xzf ./*.tgz
npm install --silent --no-audit --no-fund --prefix "$work" elysia@1.4.30 >/dev/null

cat >receiver.mjs <<'JS'
import { Elysia } from "elysia";

class Receiver {
  reason = "the database is down";

  postpone({ set }) {
    set.status = 503;
    return this.reason;
  }

  postponeByResult({ status }) {
    return status(503, this.reason);
  }

  bodyAndHeaders({ body, headers }) {
    return `body ${typeof body}, headers ${typeof headers}`;
  }
}
const receiver = new Receiver();
const postpone = (context) => receiver.postpone(context);

const compiled = new Elysia()
  .post("/arrow", postpone)
  .post("/bound", receiver.postpone.bind(receiver))
  .post("/proxy", new Proxy(postpone, {}))
  .post("/copied", (context) => postpone({ ...context }))
  .post("/bound-result", receiver.postponeByResult.bind(receiver))
  .post("/arrow-context", (context) => receiver.bodyAndHeaders(context))
  .post("/bound-context", receiver.bodyAndHeaders.bind(receiver));
const interpreted = new Elysia({ aot: false }).post("/bound-interpreted", receiver.postpone.bind(receiver));

for (const app of [compiled, interpreted]) {
  app.listen({ hostname: "127.0.0.1", port: 0 });
  for (const { method, path } of app.routes) {
    const headers = { "Content-Type": "application/json" };
    const response = await fetch(`http://127.0.0.1:${app.server.port}${path}`, { method, headers, body: "{}" });
    console.log(`${path}: ${response.status} ${await response.text()}`);
  }
}
process.exit();
JS
echo "Bun $(package/bin/bun --version), Elysia $(sed -n 's/.*"version": "\(.*\)".*/\1/p' node_modules/elysia/package.json)"
NODE_ENV=production package/bin/bun receiver.mjs | tee seen
cat >expected <<'EOF'
/arrow: 503 the database is down
/bound: 200 the database is down
/proxy: 200 the database is down
/copied: 200 the database is down
/bound-result: 503 the database is down
/arrow-context: 200 body object, headers object
/bound-context: 200 body undefined, headers undefined
/bound-interpreted: 503 the database is down
EOF
cmp -s seen expected
