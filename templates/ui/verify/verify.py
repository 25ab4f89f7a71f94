import hashlib
import hmac
import json
from datetime import datetime, timedelta, timezone


def verify(secret: str, body: bytes, headers) -> bool:
    """Returns whether a delivery is genuine and at most five minutes old. `body` is the raw body; with Flask: request.get_data()."""
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), headers.get("X-Webhook-Signature", "").encode()):
        return False
    # Everyone can sign with an empty secret: a complete one has 38 characters or more.
    if len(secret) < 38:
        return False
    # The time in the body is signed; headers are not.
    sent = datetime.fromisoformat(json.loads(body)["timestamp"])
    return abs(datetime.now(timezone.utc) - sent) <= timedelta(minutes=5)
