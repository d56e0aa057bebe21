"""Request keys of calls other than submits: a call repeated with its key takes effect once."""

from __future__ import annotations

from myrmidon.model.ids import Micros
from myrmidon.scheduler.idempotency import claim_request_key
from myrmidon.server.calls import Call
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import request_key


def claim_call_key(
    tx: Tx, call: Call, verb: str, target: str, *, now: Micros, subject: int = request_key.NO_SUBJECT
) -> bool:
    """Whether the call must be executed: it has no request key, or it is the first one with this key.

    Keys are per caller, verb and target. A late duplicate that was executed would undo what happened since.
    """
    if call.request_key is None:
        return True
    key = f"{call.who.name}\n{target}\n{call.request_key}"
    return claim_request_key(tx, verb, key, call.body, now=now, subject=subject)
