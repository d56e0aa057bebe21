"""Functions that every bot has: what the SDK adds to a graph beside the user's functions.

They have no types of their own: they get the frame of their run, and their outputs have the types of the request.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, Callable

from myrmidon.executor.failures import NotFound
from myrmidon.functions import msgpack
from myrmidon.functions.types import TypeProblem
from myrmidon.functions.values import INLINE_BYTES, decode, decode_plain

MAX_TASKS = 1_000
"""How many tasks one extension may have."""


def run(frame: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Run the builtin that a frame names; its outputs as pairs of type and bytes."""
    function = _BUILTINS.get(frame["function"])
    if function is None:
        raise NotFound(f"this bot has no builtin function {frame['function']}; it may be older than the client")
    return function(frame)


def join(frame: dict[str, Any]) -> list[tuple[str, bytes]]:
    """The list of the parts of a gathered input."""
    parts = [input_bytes(part) for part in frame["inputs"][0].get("parts", ())]
    types = frame.get("output_types") or [""]
    return [(types[0], msgpack.pack_packed(parts))]


def expand_map(frame: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Add a task for each item of a list to the job, and its output to the input of the task that joins them.

    The plan, JSON, has the label of the joining task, the node to add without its inputs, the inputs with null where
    the item goes, and the type of the item. A repeated run adds nothing twice, because the labels are the same.
    """
    items = decode_plain(input_bytes(frame["inputs"][0]))
    if type(items) is not list:
        raise TypeProblem("expected a list to map over")
    plan = json.loads(decode(input_bytes(frame["inputs"][1]), str))
    from myrmidon.executor.job_calls import calls_of  # late: most runs need neither HTTP nor TLS

    calls = calls_of(frame)
    for start in range(0, len(items), MAX_TASKS):
        uploads: dict[str, bytes] = {}
        document = _extension(plan, items[start : start + MAX_TASKS], start, uploads)
        if uploads:
            calls.upload(uploads)
        calls.extend(json.dumps(document))
    return []


def _extension(plan: dict[str, Any], items: list[Any], first: int, uploads: dict[str, bytes]) -> dict[str, Any]:
    """The document that adds the tasks of some items; large items are added to ``uploads``."""
    node, join_label = plan["node"], plan["join"]
    result_type = node["task"]["outputs"][0]["type"]
    tasks, parts = {}, []
    for number, item in enumerate(items, first):
        label = f"{join_label}[{number}]"
        constant = {"kind": "constant", "type": plan["item_type"], "payload": _payload(msgpack.pack(item), uploads)}
        inputs = [constant if one is None else one for one in plan["inputs"]]
        tasks[label] = {**node, "task": {**node["task"], "inputs": inputs}}
        parts.append({"label": label, "position": 0, "type": result_type})
    return {"tasks": tasks, "parts": {join_label: {"0": parts}}}


def _payload(data: bytes, uploads: dict[str, bytes]) -> dict[str, Any]:
    if len(data) <= INLINE_BYTES:
        return {"inline": b64encode(data).decode()}
    import hashlib  # late, as above

    digest = hashlib.sha256(data).hexdigest()
    uploads[digest] = data
    return {"digest": digest, "size": len(data)}


def input_bytes(one: dict[str, Any]) -> bytes:
    """The bytes of an input or a part of one."""
    path = one.get("path")
    if path is None:
        return one["data"]  # type: ignore[no-any-return]
    with open(path, "rb", buffering=0) as file:
        return file.read()


_BUILTINS: dict[str, Callable[[dict[str, Any]], list[tuple[str, bytes]]]] = {"join": join, "expand_map": expand_map}
