"""Cursors of paginated lists. They are signed, so that a client can only send back what the server gave it."""

from __future__ import annotations

import base64
import binascii
import hmac

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.shown_input import show_value

_MAC_BYTES = 8


def show_cursor(key: bytes, kind: str, position: str) -> str:
    """Encode a position in a list. ``kind`` names the list: a cursor of one list is not valid for another."""
    payload = position.encode()
    return base64.urlsafe_b64encode(_mac(key, kind, payload) + payload).rstrip(b"=").decode()


def read_cursor(key: bytes, kind: str, text: str) -> str:
    """Decode a cursor to its position; InvalidRequest if it was not made for this list."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if hmac.compare_digest(mac, _mac(key, kind, payload)):
            return payload.decode()
    except (binascii.Error, ValueError):
        pass
    raise InvalidRequest([Problem("cursor", show_value(text), "a cursor from the last page of this list", "cursor")])


def _mac(key: bytes, kind: str, payload: bytes) -> bytes:
    return hmac.digest(key, kind.encode() + b"\n" + payload, "sha256")[:_MAC_BYTES]
