import hashlib
import hmac
import json
from datetime import datetime, timedelta, timezone


def verify(secret: str, body: bytes, headers) -> bool:
    """Whether a delivery is genuine and fresh. `body` is the raw body; with Flask: request.get_data()."""
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), headers.get("X-Webhook-Signature", "").encode()):
        return False
    # The signed time, inside the body: headers are not signed.
    sent = datetime.fromisoformat(json.loads(body)["timestamp"])
    return abs(datetime.now(timezone.utc) - sent) <= timedelta(minutes=5)
