"""Request keys of calls other than submits: a call repeated with its key takes effect once."""

from __future__ import annotations

from myrmidon.model.ids import Micros
from myrmidon.scheduler.idempotency import claim_request_key, set_subject_of_key, subject_of_key
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
    return claim_request_key(tx, verb, _key_of(call, target), call.body, now=now, subject=subject)


def subject_of_call(tx: Tx, call: Call, verb: str, target: str) -> int:
    """What the first call with this key has created, or was answered with."""
    return subject_of_key(tx, verb, _key_of(call, target))


def answer_call(tx: Tx, call: Call, verb: str, target: str, number: int) -> None:
    """Store the number that a call is answered with, for its repetitions (request_key.number_of)."""
    if call.request_key is not None:
        set_subject_of_key(tx, verb, _key_of(call, target), request_key.for_number(number))


def _key_of(call: Call, target: str) -> str:
    return f"{call.who.key}\n{target}\n{call.request_key}"
