"""A complete receiver for Python 3.8 or newer. It verifies each delivery, stores it once, and responds before any work is done.

    KEYS="whsec_…" INBOX=inbox PORT=9000 python3 receiver.py

It needs no package, except `cryptography` for ed25519.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# One file for each delivery. Another process works on them. A file's name recognises repetitions: keep it for a day, even if empty.
INBOX = os.environ.get("INBOX", "inbox")
MAX_BODY_BYTES = 256 * 1024  # Deliveries have at most 64 KB by default.
TOLERANCE = timedelta(minutes=5)


def parse_keys(text: str) -> list:
    """Returns the version and the bytes of each key. Ends the process if a key is empty or cut off: others could sign with such a key."""
    keys = []
    for number, key in enumerate(text.split(), 1):
        kind, _, encoded = key.partition("_")
        try:
            decoded = base64.b64decode(encoded, validate=True)
        except ValueError:
            decoded = b""
        if kind == "whsec" and 24 <= len(decoded) <= 64:
            keys.append(("v1", decoded))
        elif kind == "whpk" and len(decoded) == 32:
            keys.append(("v1a", decoded))
        else:
            sys.exit(f"KEYS: key {number} is neither whsec_ with the base64 of 24 to 64 bytes nor whpk_ with that of 32 bytes")
    return keys or sys.exit("KEYS is empty: set it to the webhook's secret")


# The webhook's secret, or its ed25519 public key (whpk_…). Several, separated by spaces, while one replaces another.
KEYS = parse_keys(os.environ.get("KEYS", ""))


def matches(version: str, key: bytes, signature: bytes, content: bytes) -> bool:
    if version == "v1":
        return hmac.compare_digest(hmac.new(key, content, hashlib.sha256).digest(), signature)
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
        return True
    except InvalidSignature:
        return False


def is_signed(headers, body: bytes) -> bool:
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    for entry in headers.get("webhook-signature", "").split(" "):
        version, _, text = entry.partition(",")
        try:
            signature = base64.b64decode(text, validate=True)
        except ValueError:
            continue
        if any(matches(version, key, signature, content) for of, key in KEYS if of == version):
            return True
    return False


def is_recent(body: bytes) -> bool:
    # The time in the body is signed, and differs at each attempt.
    sent = datetime.fromisoformat(json.loads(body)["timestamp"])
    return abs(datetime.now(timezone.utc) - sent) <= TOLERANCE


def store(delivery: str, body: bytes) -> bool:
    """Returns False if the delivery was stored before. The link appears when the file is complete, and only if it does not exist."""
    descriptor, path = tempfile.mkstemp(prefix=".", dir=INBOX)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.link(path, os.path.join(INBOX, f"{delivery}.json"))
        return True
    except FileExistsError:
        return False
    finally:
        os.unlink(path)


class Receiver(BaseHTTPRequestHandler):
    timeout = 10  # A client that sends nothing for so many seconds is disconnected.

    def do_POST(self):
        length = self.headers.get("content-length", "")
        if not re.fullmatch("[0-9]{1,9}", length):
            return self.answer(411, "no length")
        if int(length) > MAX_BODY_BYTES:
            return self.answer(413, "too large")
        body = self.rfile.read(int(length))
        delivery = self.headers.get("webhook-id", "")
        if not re.fullmatch("[0-9a-f-]{36}", delivery) or not is_signed(self.headers, body) or not is_recent(body):
            return self.answer(401, "rejected")
        try:
            self.answer(200, f"accepted {delivery}" if store(delivery, body) else f"duplicate {delivery}")
        except OSError as error:
            # Not stored: the delivery is sent again later.
            self.answer(500, f"failed {error}")

    def answer(self, status: int, line: str):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()
        print(line, flush=True)

    def log_message(self, *_):
        pass


os.makedirs(INBOX, exist_ok=True)
ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 9000))), Receiver).serve_forever()
