"""The nesting of JSON text and the number of its values, found before it is decoded.

What the decoder makes of a text, and what walks over it cost, can be many times its size: a list of empty lists takes
thirty times the memory of its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_DEPTH: Final = 32
"""Lists and objects inside each other, in any JSON that a caller sends."""
MAX_VALUES: Final = 6_000_000
"""Values in any JSON that a caller sends, those in lists and objects included: 60 for each task of the largest job."""

_PIECE: Final = 256 << 10
_AS_LISTS: Final = bytes.maketrans(b"{}", b"[]")


def is_too_deep(text: bytes) -> bool:
    """Whether lists and objects are nested more than MAX_DEPTH levels; any answer for a text that is not JSON.

    Only operations on whole pieces of the text: a loop over its characters would take seconds for a large one.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for piece in _outside_strings(text, b"[]{}"):
        brackets = piece.translate(_AS_LISTS)
        depth_after = depth + 2 * brackets.count(b"[") - len(brackets)
        if not 0 <= depth_after <= MAX_DEPTH:
            return depth_after > MAX_DEPTH
        # Every pass removes the innermost level of the tree that this piece is a part of.
        tree = b"[" * depth + brackets + b"]" * depth_after
        for _ in range(MAX_DEPTH):
            tree = tree.replace(b"[]", b"")
        if b"[]" in tree:
            return True
        depth = depth_after
    return False


def has_too_many_values(text: bytes) -> bool:
    """Whether there are more than MAX_VALUES values; an empty list or object counts as two.

    Counts what values begin with or follow: each is after a comma, or the first in a list or object.
    """
    if len(text) <= MAX_VALUES or sum(map(text.count, (b",", b"[", b"{"))) <= MAX_VALUES:
        return False
    return sum(map(len, _outside_strings(text, b",[{"))) > MAX_VALUES


def _outside_strings(text: bytes, wanted: bytes) -> Iterator[bytes]:
    """Those bytes of a text that are wanted and not in a string, piece by piece."""
    others = bytes(set(range(256)) - set(wanted))
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    in_string = 0
    for at in range(0, len(text), _PIECE):
        parts = text[at : at + _PIECE].split(b'"')
        yield b"".join(parts[in_string::2]).translate(None, others)
        in_string ^= (len(parts) - 1) & 1
