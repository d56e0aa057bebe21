"""Says why tasks that somebody waits for do not run: after a few seconds, and again when the reason changes.

Without it a call that waits for a task which no bot can run is silent for days. The texts go to the logger
``myrmidon``; Python prints them to stderr unless the program has set up logging, the command line prints them as notes.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from myrmidon.sdk.errors import CallFailed

if TYPE_CHECKING:
    from myrmidon.sdk.client import Client
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire.tasks import TaskExplanation

_FIRST_LOOK_S: Final = 3.0
"""Bots of a server that was started a moment ago have connected by then."""
_NEXT_LOOK_S: Final = 30.0
_NEXT_LOOK_AT_ONE_S: Final = 5.0
_MOST_TASKS: Final = 200
_MOST_KINDS: Final = 10
"""Tasks of one look that are explained; each costs the server a look at all bots."""
_NUMBER: Final = re.compile(r"[-_./: ]?\[?\d+\]?$")

_log = logging.getLogger("myrmidon")


class WaitReasons:
    """What was said about the tasks that a caller waits for.

    Of tasks whose labels differ by a number only the first is explained. Said is what may never end: no bot can run the
    task, it is held, or a task before it has failed. Of a single task every reason is said, its place in a queue too.
    """

    def __init__(self, client: Client, say: Callable[[str], None] = _log.warning) -> None:
        self._client = client
        self._say = say
        self._explained: dict[str, Hashable] = {}
        self._seen: set[str] = set()
        self._said: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Wait for the first look again, because tasks were submitted just now."""
        self._due_at = time.monotonic() + _FIRST_LOOK_S

    def due_in(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._due_at - time.monotonic())

    def look(self, labels: Mapping[str, str]) -> None:
        """Look at tasks: their labels by id, empty where the caller does not know them."""
        self._due_at = time.monotonic() + _NEXT_LOOK_S
        with contextlib.suppress(CallFailed):
            states = self._client.wait(list(labels)[:_MOST_TASKS], wait_s=0).tasks
            waiting = [task.task_id for task in states if task.state in ("WAITING", "READY")]
            self._explain({task_id: labels[task_id] for task_id in waiting})

    def look_at_job(self, job: Job, counts: Mapping[str, int]) -> None:
        """Look at the tasks of a job that wait for a bot; if there are none and nothing runs, at the others."""
        self._due_at = time.monotonic() + _NEXT_LOOK_S
        with contextlib.suppress(CallFailed):
            state = "READY" if counts.get("READY") else "WAITING"
            if state == "READY" or not counts.get("RUNNING"):
                tasks = job.tasks(state=[state], limit=_MOST_TASKS)
                self._explain({task.task_id: task.label for task in tasks})

    @contextlib.contextmanager
    def looking_at(self, task_id: str) -> Iterator[None]:
        """Look at one task from time to time, in a thread: the caller follows its log meanwhile."""
        done = threading.Event()
        threading.Thread(target=self._look_until, args=(task_id, done), daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def _look_until(self, task_id: str, done: threading.Event) -> None:
        said: Hashable = None
        while not done.wait(self.due_in()):
            self._due_at = time.monotonic() + _NEXT_LOOK_S
            with contextlib.suppress(CallFailed):
                found = self._client.why(task_id)
                waits = found.state in ("WAITING", "READY")
                reason = reason_of(found) if waits else None
                if reason not in (None, said) and not done.is_set():
                    self._say(f"waiting: {found.summary}")
                said = reason
                if waits:
                    self._due_at = time.monotonic() + _NEXT_LOOK_AT_ONE_S

    def _explain(self, labels: Mapping[str, str]) -> None:
        kinds: dict[str, list[str]] = {}
        for task_id, label in labels.items():
            kinds.setdefault(_NUMBER.sub("", label) or task_id, []).append(task_id)
        said = set[str]() if any(labels.values()) else self._said
        new_first = sorted(kinds.items(), key=lambda kind: self._seen.issuperset(kind[1]))
        for kind, task_ids in new_first[:_MOST_KINDS]:
            found = self._client.why(task_ids[0])
            is_news = not self._seen.issuperset(task_ids) or self._explained.get(kind) != reason_of(found)
            self._explained[kind] = reason_of(found)
            self._seen.update(task_ids)
            if is_news and _may_never_end(found) and found.summary not in said:
                said.add(found.summary)
                more = f" and {len(task_ids) - 1} more" if len(task_ids) > 1 else ""
                self._say(f"waiting for {labels[task_ids[0]] or task_ids[0]}{more}: {found.summary}")


def _may_never_end(found: TaskExplanation) -> bool:
    if found.state == "READY":
        return found.capacity is not None and not found.num_serving
    return found.held or found.unreachable


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
