"""Gives every request an Idempotency-Key of its own, where it has a valid one.

Schemathesis makes up the same keys again and again. A repeated create is then answered as the first one was, which
looks like a new webhook but may long be deleted. That answers are repeated is tested in tests/api/idempotency.rs.
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
        # A key of the greatest length stays one.
        headers[KEY] = key[: 255 - len(own)] + own
