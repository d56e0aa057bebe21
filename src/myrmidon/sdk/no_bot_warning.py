"""Warns a program that waits for a task which no bot can run: it would wait for days without a word.

The warning goes to the logger ``myrmidon``; Python prints it to stderr unless the program has set up logging.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Final

from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.function_server import FunctionServer

_FIRST_LOOK_S: Final = 5.0
"""Bots of a server that was started a moment ago have connected by then."""
_NEXT_LOOK_S: Final = 60.0

_log = logging.getLogger("myrmidon")


class NoBotWarning:
    """Asks from time to time why a task does not run. The same sentence is said once."""

    def __init__(self, server: FunctionServer) -> None:
        self._server = server
        self._said: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Wait for the first look again, because tasks were submitted just now."""
        self._due_at = time.monotonic() + _FIRST_LOOK_S

    def due_in(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._due_at - time.monotonic())

    def look(self, task_id: str, label: str) -> None:
        """Warn if the task is ready and no bot can run it."""
        self._due_at = time.monotonic() + _NEXT_LOOK_S
        with contextlib.suppress(CallFailed):
            found = self._server.api.why(task_id)
            if found.state == "READY" and not found.num_serving and found.capacity not in self._said:
                self._said.add(found.capacity or "")
                _log.warning("%s waits for a bot. %s", label, found.capacity or "")
