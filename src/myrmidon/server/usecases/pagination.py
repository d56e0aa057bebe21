"""Cursors: where a list goes on, signed, so that a caller can only hand back what it was given."""

from __future__ import annotations

import base64
import binascii
import hmac

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.validation import show_value

_MAC_BYTES = 8


def show_cursor(key: bytes, kind: str, position: str) -> str:
    """The cursor of one kind of list at a position."""
    said = position.encode()
    return base64.urlsafe_b64encode(_mac(key, kind, said) + said).rstrip(b"=").decode()


def read_cursor(key: bytes, kind: str, text: str) -> str:
    """The position in a cursor; InvalidRequest when it is not one that was given out for this kind of list."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        mac, said = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if hmac.compare_digest(mac, _mac(key, kind, said)):
            return said.decode()
    except (binascii.Error, ValueError):
        pass
    raise InvalidRequest([Problem("cursor", show_value(text), "a cursor from the last page of this list", "cursor")])


def _mac(key: bytes, kind: str, said: bytes) -> bytes:
    return hmac.digest(key, kind.encode() + b"\n" + said, "sha256")[:_MAC_BYTES]
