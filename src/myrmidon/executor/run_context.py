"""The context of a run on a bot: progress, and calls that the function adds to its job."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Iterable, Sequence

from myrmidon.functions.annotations import annotation_of
from myrmidon.functions.context import Context
from myrmidon.functions.shared_ref import SharedRef
from myrmidon.functions.types import type_string
from myrmidon.functions.values import encode

if TYPE_CHECKING:
    from myrmidon.executor.submissions import Submissions

_PROGRESS_S = 0.1
"""The least time between two frames about progress; the bot sends the newest one a second to the server."""


class RunContext(Context):
    """The context of one run; it does nothing any more when the run has ended."""

    is_local = False

    def __init__(self, frame: dict[str, Any], folder: str, send: Callable[[dict[str, Any]], None]) -> None:
        """``folder`` has the code that the function is from, ``send`` sends a frame to the bot."""
        self.task_id = frame["task_id"]
        self.job_id = frame["job_id"]
        self.label = frame["label"]
        self.bot_id = frame["bot_id"]
        self.run = int(frame["run"][-2:], 16)
        self._frame = frame
        self._folder = folder
        self.submissions: Submissions | None = None
        self._lock = threading.Lock()  # the threads of a function share its context
        self._send = send
        self._next_progress_at = 0.0
        self.is_over = False

    def progress(self, value: float) -> None:
        super().progress(value)
        now = time.monotonic()
        if self.is_over or (now < self._next_progress_at and value < 1):
            return
        self._next_progress_at = now + _PROGRESS_S
        self._send({"op": "progress", "id": self._frame["id"], "value": float(value)})

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._submissions().call(function, args, kwargs)

    def map(self, function: Any, items: Iterable[Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._submissions().map(function, items, args, kwargs)

    def share(self, value: Any, type: Any = None, localities: Sequence[str] = ()) -> Any:  # noqa: A002 - as Client.share
        if self.is_over:
            raise RuntimeError("the run of this context has ended; its job gets no values from it")
        from myrmidon.executor.job_calls import calls_of  # late: most runs need no HTTP

        annotation = annotation_of(value) if type is None else type
        kind = type_string(annotation)
        return SharedRef(calls_of(self._frame).share(kind, encode(value, annotation), localities), kind)

    def flush(self) -> None:
        if self.submissions is not None:
            self.submissions.send()

    def _submissions(self) -> Submissions:
        if self.is_over:
            raise RuntimeError("the run of this context has ended; nothing can be added to its job")
        with self._lock:
            if self.submissions is None:
                from myrmidon.executor.submissions import Submissions  # late: most runs need neither HTTP nor graphs

                self.submissions = Submissions(self._frame, self._folder)
            return self.submissions
