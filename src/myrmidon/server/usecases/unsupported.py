"""Refuses requests that need what no bot can do yet, with the same code and messages in every API.

The scheduler stores references to files; only requests over HTTP are refused. Without this, such a task would be
accepted and then fail on its bot, or lose its outputs. A function outside of a job is refused too: nobody could read
its result there.
"""

from __future__ import annotations

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.shown_input import show_value
from myrmidon.model.task_request import TaskRequest

NOT_SERVED = "not_served"
"""The code of these problems."""
OUTDIR = "${ISOLATED_OUTDIR}"
"""The placeholder for a folder whose content Swarming stores."""


def no_inputs(path: str) -> Problem:
    return Problem(path, "files", "none: files are not served yet", NOT_SERVED)


def no_outputs(path: str, num_paths: int) -> Problem:
    allowed = "none: files are not served yet, so outputs would be lost"
    return Problem(path, f"{num_paths} paths", allowed, NOT_SERVED)


def _no_folder(path: str) -> Problem:
    allowed = "none: folders of results are not stored yet; declare outputs and write them to $MYRMIDON_OUTPUT_DIR"
    return Problem(path, OUTDIR, allowed, NOT_SERVED)


def check_served(request: TaskRequest, *, in_job: bool = False) -> None:
    """InvalidRequest for a task with files or a folder of results, or outside of a job with a function or ``api``."""
    problems: list[Problem] = []
    if request.function is not None and not in_job:
        allowed = "a function in a job: submit a job with this one task (POST /api/v1/jobs)"
        problems.append(Problem("function", show_value(request.function.func_name), allowed, "no_job"))
    for number, task_slice in enumerate(request.slices):
        properties = task_slice.properties
        if properties.inputs is not None:
            problems.append(no_inputs(f"slices[{number}].properties.inputs"))
        if properties.outputs:
            problems.append(no_outputs(f"slices[{number}].properties.outputs", len(properties.outputs)))
        if OUTDIR in " ".join((*properties.command, *properties.env.values())):
            problems.append(_no_folder(f"slices[{number}].properties.command"))
        if properties.api and not in_job:
            allowed = "none: only a task of a job may call the server"
            problems.append(Problem(f"slices[{number}].properties.api", show_value(properties.api), allowed, "no_job"))
    if problems:
        raise InvalidRequest(problems)
