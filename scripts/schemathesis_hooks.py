"""Replaces each valid Idempotency-Key with a unique one.

Schemathesis generates the same keys repeatedly. A repeated create then gets the response of the first one, which looks like a new
webhook but may be deleted already. tests/api/idempotency.rs tests that responses are replayed.
"""

import re
import uuid

import schemathesis

KEY = "Idempotency-Key"
VALID = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")


@schemathesis.hook
def before_call(context, case, kwargs):
    headers = case.headers or {}
    key = headers.get(KEY)
    if isinstance(key, str) and VALID.fullmatch(key):
        own = str(uuid.uuid4())
        # Keeps the maximum length.
        headers[KEY] = key[: 255 - len(own)] + own
