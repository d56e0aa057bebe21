"""The message that gives a run to a process: what to call, with which inputs, on whose behalf."""

from __future__ import annotations

import os
from typing import Any, Callable

from myrmidon.bot.protocol import Task, Value
from myrmidon.bot.run.run import Run
from myrmidon.bot.slots.executor_process import MAX_MESSAGE_BYTES, ExecutorProcess, frame_of
from myrmidon.bot.system import filesystem
from myrmidon.functions import msgpack

PathOf = Callable[[str], str]
"""The path of a value in the local cache, by its digest."""


def run_frame(
    run: Run,
    executor: ExecutorProcess,
    path_of: PathOf,
    *,
    server: str,
    bot_id: str,
    give: Callable[[str], None],
) -> bytes:
    """The frame of a run for this process; a large one is written to a file. Raises OSError."""
    task = run.task
    function = task.function
    if function is None:
        raise ValueError("the task has no function")
    message: dict[str, Any] = {
        "op": "run",
        "id": run.number,
        "run": run.id,
        "task_id": task.task_id,
        "label": task.label,
        "job_id": task.job_id,
        "package": function.package_name,
        "function": function.func_name,
        "signature": function.signature,
        "inputs": [_value(given, path_of) for given in task.inputs],
        "output_folder": os.path.join(executor.folder, "out"),
        "server": server,
        "token": task.api_token,
        "bot_id": bot_id,
    }
    rare = {
        "language": function.language if function.language != "PYTHON" else "",
        "env": task.env,
        "output_types": list(task.output_types),
        "environment": function.environment,
        "memory_mb": function.memory_mb,
    }
    message.update((name, value) for name, value in rare.items() if value)  # what is left out costs nothing
    frame = frame_of(message)
    if len(frame) <= MAX_MESSAGE_BYTES:
        return frame
    path = os.path.join(executor.folder, f"{run.number}.run")
    filesystem.write_file(path, msgpack.pack(message))
    give(path)
    return frame_of({"op": "frame", "id": run.number, "path": path})


def _value(given: Value, path_of: PathOf) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if given.payload is not None:
        found["data"] = given.payload
    elif given.digest:
        found["path"] = path_of(given.digest)
    if given.parts is not None:
        found["parts"] = [_value(part, path_of) for part in given.parts]
    return found


def digests_of(task: Task) -> set[str]:
    """The digests of all inputs and parts that are not in the message of the claim."""
    values = [*task.inputs, *(part for given in task.inputs for part in given.parts or ())]
    return {value.digest for value in values if value.payload is None and value.digest}
