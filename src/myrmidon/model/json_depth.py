"""The nesting of JSON text, found before it is decoded.

What the decoder makes of a deep text, and what walks over it cost, can be thousands of times its size.
"""

from __future__ import annotations

from typing import Final

MAX_DEPTH: Final = 32
"""Lists and objects inside each other, in any JSON that a caller sends."""

_PIECE: Final = 256 << 10
_OTHERS: Final = bytes(set(range(256)) - set(b"[]{}"))
_AS_LISTS: Final = bytes.maketrans(b"{}", b"[]")


def is_too_deep(text: bytes) -> bool:
    """Whether lists and objects are nested more than MAX_DEPTH levels; any answer for a text that is not JSON.

    Only operations on whole pieces of the text: a loop over its characters would take seconds for a large one.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    depth, in_string = 0, 0
    for at in range(0, len(text), _PIECE):
        parts = text[at : at + _PIECE].split(b'"')
        brackets = b"".join(parts[in_string::2]).translate(_AS_LISTS, _OTHERS)
        in_string ^= (len(parts) - 1) & 1
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
