"""Refuses requests that need what no bot can do yet, with the same code and messages in every API.

The scheduler stores functions and references to files; only requests over HTTP are refused. Without
this, such a task would be accepted and then fail on its bot, or lose its outputs.
"""

from __future__ import annotations

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.task_request import TaskRequest
from myrmidon.model.validation import show_value

NOT_SERVED = "not_served"
"""The code of these problems."""


def no_inputs(path: str) -> Problem:
    return Problem(path, "files", "none: files are not served yet", NOT_SERVED)


def no_outputs(path: str, num_paths: int) -> Problem:
    allowed = "none: files are not served yet, so outputs would be lost"
    return Problem(path, f"{num_paths} paths", allowed, NOT_SERVED)


def check_served(request: TaskRequest, *, in_job: bool = False) -> None:
    """InvalidRequest for a task with a function, input files or output paths, or ``api`` outside a job."""
    problems: list[Problem] = []
    if request.function is not None:
        name = show_value(request.function.func_name)
        allowed = "none: functions are not served yet; submit a command"
        problems.append(Problem("function", name, allowed, NOT_SERVED))
    for number, task_slice in enumerate(request.slices):
        properties = task_slice.properties
        if properties.inputs is not None:
            problems.append(no_inputs(f"slices[{number}].properties.inputs"))
        if properties.outputs:
            problems.append(no_outputs(f"slices[{number}].properties.outputs", len(properties.outputs)))
        if properties.api and not in_job:
            allowed = "none: only a task of a job may call the server"
            problems.append(Problem(f"slices[{number}].properties.api", show_value(properties.api), allowed, "no_job"))
    if problems:
        raise InvalidRequest(problems)
