import { createHmac, timingSafeEqual } from "node:crypto";

// Returns whether a delivery is genuine and at most five minutes old. `body` is the raw body, a Buffer; with Express: express.raw({ type: "*/*" }).
export function verify(secret, body, headers) {
  const expected = Buffer.from(createHmac("sha256", secret).update(body).digest("hex"));
  const given = Buffer.from(headers["x-webhook-signature"] ?? "");
  if (given.length !== expected.length || !timingSafeEqual(given, expected)) return false;
  // Everyone can sign with an empty secret: a complete one has 38 characters or more.
  if (secret.length < 38) return false;
  // The time in the body is signed; headers are not.
  const age = Math.abs(Date.now() - Date.parse(JSON.parse(body).timestamp));
  return age <= 5 * 60 * 1000;
}
