"""Request keys: a call that is repeated with the same key has the effect of one call.

A key is stored together with a digest of the request, so that the same key with a different request is refused.
"""

from hashlib import sha256

from msgspec import json

from myrmidon.model.errors import Conflict, InvalidRequest, Problem
from myrmidon.model.ids import Micros
from myrmidon.model.shown_input import show_value
from myrmidon.model.validation import is_clean
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import request_key as request_keys

_KEY_CHARS = 256


def check_key(key: str) -> None:
    """Raise InvalidRequest unless the text can be a request key."""
    if not (0 < len(key) <= _KEY_CHARS and is_clean(key)):
        allowed = f"1 to {_KEY_CHARS} characters"
        raise InvalidRequest([Problem("request_key", show_value(key), allowed, "length")])


def key_conflict(key: str) -> Conflict:
    return Conflict(f"the request key {key} was used for another request; use a new key for a new request")


def claim_request_key(
    tx: Tx,
    verb: str,
    request_key: str,
    body: object,
    *,
    now: Micros,
    group_id: int = request_keys.NO_GROUP,
    subject: int = request_keys.NO_SUBJECT,
) -> bool:
    """Store the key of a call other than submit; True for the first call with it, False for a repetition.

    Raises Conflict if the key was used with a different body.
    """
    key, body_hash = _stored_key(verb, request_key), sha256(json.encode(body)).hexdigest()
    if request_keys.insert(tx, [(group_id, key, body_hash, subject, now)]):
        return True
    if request_keys.read(tx, group_id, [key])[key][0] != body_hash:
        raise Conflict(f"the request key was used for another {verb}; use a new key for a new request")
    return False


def number_of_key(tx: Tx, verb: str, request_key: str, *, group_id: int) -> int:
    """The number that the first call with this key was answered with (request_keys.for_number)."""
    return request_keys.number_of(subject_of_key(tx, verb, request_key, group_id=group_id))


def subject_of_key(tx: Tx, verb: str, request_key: str, *, group_id: int = request_keys.NO_GROUP) -> int:
    """What the first call with this key has created, or was answered with."""
    key = _stored_key(verb, request_key)
    return request_keys.read(tx, group_id, [key])[key][1]


def set_subject_of_key(
    tx: Tx, verb: str, request_key: str, subject: int, *, group_id: int = request_keys.NO_GROUP
) -> None:
    """Store what a call is answered with, for its repetitions; its key was claimed in the same transaction."""
    request_keys.set_subject(tx, group_id, _stored_key(verb, request_key), subject)


def _stored_key(verb: str, request_key: str) -> str:
    return f"{verb}:{sha256(request_key.encode()).hexdigest()}"
