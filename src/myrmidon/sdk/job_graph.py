"""Which tasks of a job have failed, how, and which of the others they block."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from myrmidon.sdk.exit_code import exit_code_text

if TYPE_CHECKING:
    from myrmidon.wire import jobs as wire

T = TypeVar("T")
FAILED: Final = ("FAILED", "TIMED_OUT", "BOT_DIED", "EXPIRED", "NO_RESOURCE", "CLIENT_ERROR", "CANCELLED", "KILLED")
"""The states of tasks that ended without success."""

_MAX_MESSAGE: Final = 200


def describe_end(task: wire.Failure | wire.JobTask, *, where: str = "") -> str:
    """How a task ended, in words: ``FAILED with exit code 2 (retry)``, ``FAILED: ValueError: no words``.

    The exit code of a function that has raised an exception says nothing. ``where`` is put before the message.
    """
    code = f" with {exit_code_text(task.exit_code)}" if task.exit_code and task.error is None else ""
    reason = f" ({task.reason})" if task.reason not in ("", "exit_code") else ""
    message = f": {short_message(task)}" if task.message else ""
    return f"{task.state}{code}{reason}{where}{message}"


def grouped(ends: Iterable[tuple[T, str, str, str]]) -> dict[str, list[T]]:
    """Failures by what happened; of each there is a text, and the class and the place of its exception.

    Exceptions of one class at one place are one group, with the text of the first: messages often name the input.
    """
    texts: dict[tuple[str, str], str] = {}
    groups: dict[str, list[T]] = {}
    for failure, text, error_type, place in ends:
        named = texts.setdefault((error_type, place), f"{text}, raised at {place}") if place else text
        groups.setdefault(named, []).append(failure)
    return groups


def short_message(task: wire.Failure | wire.JobTask) -> str:
    """The first line of what the bot says of the end, shortened."""
    first = task.message.strip().partition("\n")[0]
    return first if len(first) <= _MAX_MESSAGE else f"{first[: _MAX_MESSAGE - 3]}..."


def blockers(tasks: Collection[wire.JobTask]) -> dict[str, str]:
    """For each of the tasks that cannot start, the label of the one among them that ended without success before it.

    A parent in ``requires_left`` that has ended did not satisfy the edge, and one that cannot start never will.
    """
    failed = {task.label for task in tasks if task.state in FAILED}
    children: dict[str, list[str]] = {}
    for task in tasks:
        if task.state == "WAITING":
            for parent in task.requires_left:
                children.setdefault(parent, []).append(task.label)
    found: dict[str, str] = {}
    pending = [(child, parent) for parent in sorted(failed) for child in children.get(parent, [])]
    while pending:
        label, blocker = pending.pop()
        if label not in found:
            found[label] = blocker
            pending += [(child, blocker) for child in children.get(label, [])]
    return found
