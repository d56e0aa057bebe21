"""From what a user sent to a task request, with every problem that it has. The reader itself is task_checks.py."""

from __future__ import annotations

from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.task_request import OutputOf, TaskRequest
from myrmidon.model.task_validation import checked_task
from myrmidon.model.validation import Checker, Path


def parse_task(raw: object, limits: Limits = DEFAULT_LIMITS) -> TaskRequest:
    """The request as a struct, or InvalidRequest with every problem it has.

    An input that is the output of another task is refused here: a lone task has no job to find it in.
    """
    check = Checker(limits)
    request = checked_task(check, raw, ())
    for i, given in enumerate(request.inputs):
        if isinstance(given, OutputOf):
            check.note(
                ("inputs", i, "label"),
                given.label,
                "constant or shared inputs; this task is in no job",
                "job",
            )
    check.finish()
    return request


def read_task(check: Checker, raw: object, path: Path, label: str = "") -> TaskRequest:
    """The same with problems noted in check; wrong fields are left at something harmless.

    A task in a graph is named by its label unless it has a name of its own.
    """
    return checked_task(check, raw, path, label)
