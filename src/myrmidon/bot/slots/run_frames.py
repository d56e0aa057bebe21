"""The message that gives a run to a process: what to call, with which inputs, on whose behalf."""

from __future__ import annotations

import os
from base64 import b64decode
from typing import Any, Callable

from myrmidon.bot.slots.executor_process import MAX_MESSAGE_BYTES, ExecutorProcess, frame_of
from myrmidon.bot.slots.function_run import FunctionRun
from myrmidon.bot.system import filesystem
from myrmidon.functions import msgpack

PathOf = Callable[[str], str]
"""The path of a value in the local cache, by its digest."""


def run_frame(
    run: FunctionRun,
    executor: ExecutorProcess,
    path_of: PathOf,
    *,
    server: str,
    bot_id: str,
    give: Callable[[str], None],
) -> bytes:
    """The frame of a run for this process; a large one is written to a file. Raises OSError."""
    task = run.task
    function = task["function"]
    message = {
        "op": "run",
        "id": run.id,
        "run": run.run,
        "task_id": task.get("task_id") or "",
        "label": task.get("label") or "",
        "job_id": task.get("job_id") or "",
        "package": function["package_name"],
        "function": function["func_name"],
        "language": function.get("language") or "PYTHON",
        "signature": function.get("signature") or "",
        "inputs": [_input(given, path_of) for given in task.get("inputs") or ()],
        "env": task.get("env") or {},
        "output_types": task.get("output_types") or [],
        "output_folder": os.path.join(executor.folder, "out"),
        "environment": function.get("environment") or "",
        "memory_mb": function.get("memory_mb") or None,
        "server": server,
        "token": task.get("api_token") or "",
        "bot_id": bot_id,
    }
    frame = frame_of(message)
    if len(frame) <= MAX_MESSAGE_BYTES:
        return frame
    path = os.path.join(executor.folder, f"{run.id}.run")
    filesystem.write_file(path, msgpack.pack(message))
    give(path)
    return frame_of({"op": "frame", "id": run.id, "path": path})


def _input(given: dict[str, Any], path_of: PathOf) -> dict[str, Any]:
    found = _value(given, path_of)
    if given.get("parts") is not None:
        found["parts"] = [_value(part, path_of) for part in given["parts"]]
    return found


def _value(given: dict[str, Any], path_of: PathOf) -> dict[str, Any]:
    payload = given.get("payload")
    if payload is not None:
        return {"data": b64decode(payload)}
    return {"path": path_of(given["digest"])} if given.get("digest") else {}


def digests_of(task: dict[str, Any]) -> set[str]:
    """The digests of all inputs and parts that are not in the message of the claim."""
    values = [*(task.get("inputs") or ())]
    for given in task.get("inputs") or ():
        values += given.get("parts") or ()
    return {value["digest"] for value in values if value.get("payload") is None and value.get("digest")}
