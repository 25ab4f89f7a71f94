"""Changes requests that Schemathesis generates.

Replaces each valid Idempotency-Key with a unique one. Schemathesis generates the same keys repeatedly. A repeated create then gets the
response of the first one, which looks like a new webhook but may be deleted already. tests/api/idempotency.rs tests that responses are
replayed.

Replaces random ids in paths with ids of resources that exist, except where they would be deleted, and in scenarios that follow links.
"""

import os
import re
import uuid

import schemathesis

KEY = "Idempotency-Key"
# The variables with the ids, by the names of the parameters.
IDS = {"webhook": "WEBHOOK", "id": "EVENT", "log": "LOG", "job": "JOB"}
VALID = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")


@schemathesis.hook
def before_call(context, case, kwargs):
    headers = case.headers or {}
    key = headers.get(KEY)
    if isinstance(key, str) and VALID.fullmatch(key):
        own = str(uuid.uuid4())
        # Keeps the maximum length.
        headers[KEY] = key[: 255 - len(own)] + own
    is_scenario = case.meta is not None and case.meta.phase.name.value == "stateful"
    if not is_scenario and case.operation.definition.raw.get("operationId") != "deleteWebhook":
        parameters = case.path_parameters or {}
        for name in IDS.keys() & parameters.keys():
            if is_id(parameters[name]):
                parameters[name] = os.environ[IDS[name]]


def is_id(value):
    try:
        return str(uuid.UUID(value)) == value
    except (AttributeError, TypeError, ValueError):
        return False
