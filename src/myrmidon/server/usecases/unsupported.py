"""Refuses requests with input or output files, which are not implemented, with the same messages in every API.

The scheduler stores and hashes references to files; only requests over HTTP are refused.
"""

from __future__ import annotations

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.task_request import TaskRequest

FILES = "files"
"""The code of these problems."""


def no_inputs(path: str) -> Problem:
    return Problem(path, "files", "none: this server does not serve files yet", FILES)


def no_outputs(path: str, num_paths: int) -> Problem:
    allowed = "none: this server does not serve files yet, so outputs would be lost"
    return Problem(path, f"{num_paths} paths", allowed, FILES)


def check_no_files(request: TaskRequest) -> None:
    """InvalidRequest for a task with input files or output paths."""
    problems: list[Problem] = []
    for number, task_slice in enumerate(request.slices):
        properties = task_slice.properties
        if properties.inputs is not None:
            problems.append(no_inputs(f"slices[{number}].properties.inputs"))
        if properties.outputs:
            problems.append(no_outputs(f"slices[{number}].properties.outputs", len(properties.outputs)))
    if problems:
        raise InvalidRequest(problems)
