"""Functions: what the answers about runs say of the exceptions that ended them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class FunctionError(Struct, frozen=True, kw_only=True):
    """The exception that a function has raised.

    ``type`` is its class as ``module.QualName``, ``bases`` are the classes that it is derived from, nearest first;
    ``args`` are its arguments if they are JSON. ``place`` is the last line of the user's code that it has passed, as
    ``report.py:12 in parse``; empty for functions of shared libraries.
    """

    type: str
    message: str = ""
    traceback: str = ""
    bases: list[str] = []
    args: Any = None
    place: str = ""
