// A complete receiver for Node 18 or newer, without dependencies. It verifies each delivery, stores it once, and responds before any
// work is done.
//
//   KEYS="whsec_…" INBOX=inbox PORT=9000 node receiver.mjs
import { createHmac, createPublicKey, timingSafeEqual, verify } from "node:crypto";
import { linkSync, mkdirSync, unlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

// The webhook's secret, or its ed25519 public key (whpk_…). Several, separated by spaces, while one replaces another.
const keys = parseKeys(process.env.KEYS ?? "");
// One file for each delivery. Another process works on them. A file's name recognises repetitions: keep it for a day, even if empty.
const inbox = process.env.INBOX ?? "inbox";
const MAX_BODY_BYTES = 256 * 1024; // Deliveries have at most 64 KB by default.
const TOLERANCE_MS = 5 * 60 * 1000;
// A client that has not sent its request by then is disconnected.
const REQUEST_MS = 10 * 1000;

// Returns the version and the bytes of each key. Throws if a key is empty or cut off: others could sign with such a key.
function parseKeys(text) {
  const keys = text.split(/\s+/).filter(Boolean).map((key, index) => {
    const [, kind, encoded] = key.match(/^(whsec|whpk)_([A-Za-z0-9+/]+={0,2})$/) ?? [];
    const bytes = Buffer.from(encoded ?? "", "base64");
    if (kind === "whsec" && bytes.length >= 24 && bytes.length <= 64) return { version: "v1", bytes };
    if (kind === "whpk" && bytes.length === 32) return { version: "v1a", bytes };
    throw new Error(`KEYS: key ${index + 1} is neither whsec_ with the base64 of 24 to 64 bytes nor whpk_ with that of 32 bytes`);
  });
  if (keys.length === 0) throw new Error("KEYS is empty: set it to the webhook's secret");
  return keys;
}

function matches({ version, bytes }, signature, content) {
  if (version === "v1") {
    const expected = createHmac("sha256", bytes).update(content).digest();
    return signature.length === expected.length && timingSafeEqual(signature, expected);
  }
  const jwk = { kty: "OKP", crv: "Ed25519", x: bytes.toString("base64url") };
  return verify(null, content, createPublicKey({ key: jwk, format: "jwk" }), signature);
}

// Returns whether one of the signatures is genuine and the delivery is recent. `body` is the raw body.
function isGenuine(headers, body) {
  const head = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.`;
  const content = Buffer.concat([Buffer.from(head), body]);
  const isSigned = (headers["webhook-signature"] ?? "").split(" ").some((entry) => {
    const [version, text] = entry.split(",");
    const signature = Buffer.from(text ?? "", "base64");
    return keys.some((key) => key.version === version && matches(key, signature, content));
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
const limits = { headersTimeout: REQUEST_MS, requestTimeout: REQUEST_MS, connectionsCheckingInterval: 1000 };
createServer(limits, (request, response) => {
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
