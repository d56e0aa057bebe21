"""Texts for people about parts of a request: where a part is, and what was given there.

Input is never quoted whole: texts are truncated, for containers only their size is shown (one may hold a secret), and
so for very large numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a part of a request."""

DID_YOU_MEAN: Final = "did you mean that?"
"""In the rule for an unknown key that looks like a known one."""
NOTHING: Final[Mapping[str, str]] = {}
_LIKENESS: Final = 0.75
"""How alike a misspelt key and a known one are at least, from 0 to 1."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_$\-]{1,255}")


def show_path(path: Path) -> str:
    """``("slices", 0, "properties")`` as ``slices[0].properties``; unusual keys are quoted."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _BARE_KEY.fullmatch(step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{_truncate(step)}]")
    return "".join(parts)


def show_value(value: object) -> str:
    """A short text for a value, without the content of containers; never raises, never recurses."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return _truncate(value)
    if isinstance(value, (bytes, bytearray)):
        return count(len(value), "byte")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value)) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(float(value))
    return kind_of(value)


def kind_of(value: object) -> str:
    """The kind and size of a value, for places where the value itself must not be shown."""
    if isinstance(value, str):
        return f"text of {count(len(value), 'character')}"
    if isinstance(value, dict):
        return f"an object of {count(len(value), 'key')}"
    if isinstance(value, (list, tuple)):
        return f"a list of {count(len(value), 'item')}"
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, (int, float)) else f"a value of type {type(value).__name__}"


def allowed_keys(key: str, known: Collection[str], instead: Mapping[str, str] = NOTHING) -> str:
    """What is allowed in place of an unknown key: the known one that was probably meant, else all that are known.

    ``instead``: what there is in place of keys that people know from elsewhere.
    """
    if key in instead:
        return f"nothing here: {instead[key]}"
    near = near_key(key, known)
    return f"`{near}` ({DID_YOU_MEAN})" if near else f"one of {', '.join(sorted(known))}"


def near_key(key: str, known: Collection[str]) -> str:
    """The known key that another one looks like, such as env of ENV and max_run_time of maxRunTime; empty if none."""
    plain = {_plain(one): one for one in known}
    return next((plain[one] for one in get_close_matches(_plain(key[:100]), plain, 1, _LIKENESS)), "")


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def count(number: int, noun: str) -> str:
    """``1 item``, ``2 items``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _truncate(text: str) -> str:
    shown = repr(str(text[:100]))
    return shown if len(shown) <= 100 and len(text) <= 100 else f"{shown[:96]}...{shown[0]}"
