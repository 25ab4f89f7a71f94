import { createHmac, timingSafeEqual } from "node:crypto";

// Whether a delivery is genuine and fresh. `body` is the raw body, a Buffer; with Express: express.raw({ type: "*/*" }).
export function verify(secret, body, headers) {
  const expected = createHmac("sha256", secret).update(body).digest("hex");
  const given = headers["x-webhook-signature"] ?? "";
  const genuine = given.length === expected.length && timingSafeEqual(Buffer.from(given), Buffer.from(expected));
  const age = Math.abs(Date.now() - Date.parse(headers["x-webhook-timestamp"]));
  return genuine && age <= 5 * 60 * 1000;
}
