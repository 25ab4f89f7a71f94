#!/bin/sh
# @microsoft/fetch-event-source 2.0.1, extended-eventsource 2.1.0: an event that a lost connection cuts off is never received.
#
# Guess: an event without its blank line is incomplete and does not count. The client resumes with the id of the last complete event, as
# the standard says, and gets the event again as a whole.
# Seen: these clients take over an id as soon as they have read its line. If the connection ends within an event that begins with its id,
# they discard the event, and ask for what comes after it. There is no error. If the id is the event's last line, nothing is lost.
# eventsource 5.1.5 receives all events in either case. An event of several packets can be cut off by any proxy that limits how long a
# connection lasts, and by each restart.
#
# Needs Node 20 and npm. Exits with 1 if the behaviour differs.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --prefix "$work" \
    @microsoft/fetch-event-source@2.0.1 extended-eventsource@2.1.0 eventsource@5.1.5 >/dev/null

cat >clients.mjs <<'JS'
import { createServer } from "node:http";
import { fetchEventSource } from "@microsoft/fetch-event-source";
import { EventSource as Extended } from "extended-eventsource";
import { EventSource as Standard } from "eventsource";

// fetch-event-source is made for browsers.
globalThis.window = globalThis;
globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };

// Each client follows the stream and reports the data of its events.
const events = (Client) => (url, report) => {
  const source = new Client(url, { disableLogger: true });
  source.addEventListener("released", (event) => report(event.data));
  source.onerror = () => {};
};
const clients = {
  "fetch-event-source": (url, report) =>
    fetchEventSource(url, {
      openWhenHidden: true,
      onmessage: (event) => event.data && report(event.data),
      onclose: () => {
        throw new Error("lost");
      },
      onerror: () => 100,
    }),
  "extended-eventsource": events(Extended),
  eventsource: events(Standard),
};
const orders = {
  "id first": (n) => `id: ${n}\nevent: released\ndata: release ${n}\n\n`,
  "id last": (n) => `event: released\ndata: release ${n}\nid: ${n}\n\n`,
};

// Follows events 1 to 3. The first connection ends within the data of event 2.
async function received(client, event) {
  const server = createServer((request, response) => {
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    response.write("retry: 100\n\n");
    const last = request.headers["last-event-id"];
    if (last === undefined) {
      response.write(event(1));
      response.write(event(2).slice(0, event(2).indexOf("release 2") + 4));
      setTimeout(() => response.destroy(), 200);
    } else {
      for (let n = Number(last) + 1; n <= 3; n += 1) response.write(event(n));
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const seen = [];
  await new Promise((resolve) => {
    client(`http://127.0.0.1:${server.address().port}/`, (data) => {
      seen.push(data.replace("release ", ""));
      if (data === "release 3") resolve();
    });
  });
  return seen.join(" ");
}

for (const [name, client] of Object.entries(clients)) {
  const results = [];
  for (const [order, event] of Object.entries(orders)) results.push(`${order}: ${await received(client, event)}`);
  console.log(`${name}: ${results.join("; ")}`);
}
process.exit();
JS

timeout 60 node clients.mjs 2>/dev/null >seen || true
cat seen
cat >expected <<'EOF'
fetch-event-source: id first: 1 3; id last: 1 2 3
extended-eventsource: id first: 1 3; id last: 1 2 3
eventsource: id first: 1 2 3; id last: 1 2 3
EOF
cmp -s seen expected
