"""Functions that every bot has: what the SDK adds to a graph beside the user's functions."""

from __future__ import annotations

from typing import Any, Callable

from myrmidon.executor.failures import NotFound
from myrmidon.functions import msgpack


def run(frame: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Run the builtin that a frame names; its outputs as pairs of type and bytes."""
    function = _BUILTINS.get(frame["function"])
    if function is None:
        raise NotFound(f"this bot has no builtin function {frame['function']}; it may be older than the client")
    return function(frame)


def join(frame: dict[str, Any]) -> list[tuple[str, bytes]]:
    """The list of the parts of a gathered input."""
    parts = [_bytes(part) for part in frame["inputs"][0].get("parts", ())]
    types = frame.get("output_types") or [""]
    return [(types[0], msgpack.pack_packed(parts))]


def _bytes(one: dict[str, Any]) -> Any:
    if one.get("path") is None:
        return one["data"]
    with open(one["path"], "rb", buffering=0) as file:
        return file.read()


_BUILTINS: dict[str, Callable[[dict[str, Any]], list[tuple[str, bytes]]]] = {"join": join}
