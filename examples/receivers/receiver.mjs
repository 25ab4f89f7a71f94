// A complete receiver for Node 18 or newer, without dependencies. It verifies each delivery, stores it once, and responds before any
// work is done.
//
//   KEYS="whsec_…" INBOX=inbox PORT=9000 node receiver.mjs
import { createHmac, createPublicKey, timingSafeEqual, verify } from "node:crypto";
import { linkSync, mkdirSync, unlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

// The webhook's secret, or its ed25519 public key (whpk_…). Several, separated by spaces, while one replaces another.
const keys = (process.env.KEYS ?? "").split(" ").filter(Boolean);
// One file for each delivery. Another process works on them. A file's name recognises repetitions: keep it for a day, even if empty.
const inbox = process.env.INBOX ?? "inbox";
const MAX_BODY_BYTES = 256 * 1024; // Deliveries have at most 64 KB by default.
const TOLERANCE_MS = 5 * 60 * 1000;

function matches(key, version, signature, content) {
  const bytes = Buffer.from(key.slice(key.indexOf("_") + 1), "base64");
  if (version === "v1" && key.startsWith("whsec_")) {
    const expected = createHmac("sha256", bytes).update(content).digest();
    return signature.length === expected.length && timingSafeEqual(signature, expected);
  }
  if (version === "v1a" && key.startsWith("whpk_")) {
    const jwk = { kty: "OKP", crv: "Ed25519", x: bytes.toString("base64url") };
    return verify(null, content, createPublicKey({ key: jwk, format: "jwk" }), signature);
  }
  return false;
}

// Returns whether one of the signatures is genuine and the delivery is recent. `body` is the raw body.
function isGenuine(headers, body) {
  const head = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.`;
  const content = Buffer.concat([Buffer.from(head), body]);
  const isSigned = (headers["webhook-signature"] ?? "").split(" ").some((entry) => {
    const [version, text] = entry.split(",");
    return keys.some((key) => matches(key, version, Buffer.from(text ?? "", "base64"), content));
  });
  // The time in the body is signed, and differs at each attempt.
  return isSigned && Math.abs(Date.now() - Date.parse(JSON.parse(body).timestamp)) <= TOLERANCE_MS;
}

// Returns false if the delivery was stored before. The link appears when the file is complete, and only if it does not exist.
function store(id, body) {
  const file = join(inbox, `.${id}.${process.hrtime.bigint()}`);
  writeFileSync(file, body, { flush: true });
  try {
    linkSync(file, join(inbox, `${id}.json`));
    return true;
  } catch (error) {
    if (error.code === "EEXIST") return false;
    throw error;
  } finally {
    unlinkSync(file);
  }
}

function receive(headers, body) {
  const id = headers["webhook-id"] ?? "";
  if (!/^[0-9a-f-]{36}$/.test(id) || !isGenuine(headers, body)) return [401, "rejected"];
  return [200, store(id, body) ? `accepted ${id}` : `duplicate ${id}`];
}

mkdirSync(inbox, { recursive: true });
createServer((request, response) => {
  const chunks = [];
  let bytes = 0;
  request.on("data", (chunk) => {
    bytes += chunk.length;
    if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
  });
  request.on("end", () => {
    let [status, line] = [413, "too large"];
    try {
      if (bytes <= MAX_BODY_BYTES) [status, line] = receive(request.headers, Buffer.concat(chunks));
    } catch (error) {
      // Not stored: the delivery is sent again later.
      [status, line] = [500, `failed ${error}`];
    }
    response.writeHead(status).end();
    console.log(line);
  });
}).listen(Number(process.env.PORT ?? 9000), "127.0.0.1");
