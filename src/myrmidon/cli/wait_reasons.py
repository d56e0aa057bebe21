"""Says why a task that is being followed waits: once for each reason, again when the reason changes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from myrmidon.cli import output
from myrmidon.sdk.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import Hashable

    from myrmidon.cli.context import CliContext
    from myrmidon.wire.tasks import TaskExplanation

_FIRST_LOOK_S: Final = 3.0
_NEXT_LOOK_S: Final = 5.0
_LOOK_WHILE_RUNNING_S: Final = 30.0
"""A task whose bot is lost waits again."""
_WAITS: Final = ("WAITING", "READY")


@contextlib.contextmanager
def explain_long_wait(cli: CliContext, task_id: str) -> Iterator[None]:
    """Print what the task waits for if it has not started after a few seconds, and each new reason after that."""
    done = threading.Event()
    threading.Thread(target=_explain_until, args=(cli, task_id, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _explain_until(cli: CliContext, task_id: str, done: threading.Event) -> None:
    """Runs in a thread: the main thread follows the log."""
    said: Hashable = None
    pause_s = _FIRST_LOOK_S
    while not done.wait(pause_s):
        with contextlib.suppress(CallFailed):
            explanation = cli.api.why(task_id)
            waits = explanation.state in _WAITS
            reason = reason_of(explanation) if waits else None
            if reason not in (None, said) and not done.is_set():
                output.note(f"waiting: {explanation.summary}")
            said = reason
            pause_s = _NEXT_LOOK_S if waits else _LOOK_WHILE_RUNNING_S


def reason_of(explanation: TaskExplanation) -> Hashable:
    """What makes two explanations the same reason: not the place in the queue, nor how long a bot has been silent."""
    wanted = tuple(step.dimension for step in explanation.dimensions)
    if explanation.num_serving:
        return explanation.state, wanted
    missing = tuple(step.dimension for step in explanation.dimensions if not step.left)
    unavailable = tuple(
        (bot.bot_id, bot.state, None if bot.state == "silent" else bot.reason) for bot in explanation.unavailable
    )
    waits_for = (tuple(explanation.waiting_on), explanation.unreachable, explanation.held)
    return explanation.state, wanted, waits_for, missing, unavailable
