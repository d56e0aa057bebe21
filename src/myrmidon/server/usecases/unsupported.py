"""What no task gets yet: files. Every context refuses them in the same words, so that nobody waits for them in vain.

The core stores and hashes references to files; only who asks for some over HTTP is told that nobody brings them.
"""

from __future__ import annotations

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.task_request import TaskRequest

FILES = "files"
"""The code of such a problem."""


def no_inputs(path: str) -> Problem:
    return Problem(path, "files", "none: this server does not serve files yet", FILES)


def no_outputs(path: str, given: int) -> Problem:
    told = "none: this server does not serve files yet, so outputs would be lost"
    return Problem(path, f"{given} paths", told, FILES)


def check_no_files(request: TaskRequest) -> None:
    """InvalidRequest for a task that wants files brought, or paths kept."""
    problems: list[Problem] = []
    for number, one in enumerate(request.slices):
        if one.properties.inputs is not None:
            problems.append(no_inputs(f"slices[{number}].properties.inputs"))
        if one.properties.outputs:
            problems.append(no_outputs(f"slices[{number}].properties.outputs", len(one.properties.outputs)))
    if problems:
        raise InvalidRequest(problems)
