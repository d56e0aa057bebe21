"""Calls about the output of tasks, and the stream of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from myrmidon.sdk.api.caller import API, Caller, decode, segment
from myrmidon.wire.events import EventData
from myrmidon.wire.logs import Ended, LogBytes, LogGap


class LogCalls(Caller):
    def log(self, task_id: str, *, run: int | None = None, stream: str = "both") -> Iterator[bytes]:
        """The log so far, in chunks. ``stream`` is stdout, stderr, or both: stdout, then stderr."""
        offset, length = 0, 1
        while offset < length:
            query = {"run": run, "stream": stream, "offset": offset}
            page = self.transport.call("GET", f"{API}/tasks/{segment(task_id)}/log", query=query)
            if not page.data:
                return
            yield page.data
            offset, length = int(page.headers["X-Log-Next"]), int(page.headers["X-Log-Length"])

    def log_tail(self, task_id: str, *, num_bytes: int = 8_192) -> bytes:
        """The last bytes of the log so far, stdout before stderr."""
        path = f"{API}/tasks/{segment(task_id)}/log"
        head = self.transport.call("GET", path, query={"stream": "both", "limit": 1})
        offset = max(0, int(head.headers["X-Log-Length"]) - num_bytes)
        return self.transport.call("GET", path, query={"stream": "both", "offset": offset, "limit": num_bytes}).data

    def _follow(self, task_id: str, *, run: int | None, stream: str) -> Iterator[LogBytes | Ended]:
        path, query = f"{API}/tasks/{segment(task_id)}/log/follow", {"run": run, "stream": stream}
        for event in self.transport.stream(path, query=query):
            if event.name == "log":
                yield decode(event.data, LogBytes)
            elif event.name == "cut":
                yield _gap(decode(event.data, LogGap))
            elif event.name == "end":
                yield decode(event.data, Ended)
                return

    def events(self, *, after: int | str | None = None, **filters: Any) -> Iterator[EventData]:
        """Events, from now on or after the event at this position. The iterator does not end by itself.

        Filters: job (a job and its tasks), task (a list of tasks), kind (a list of kinds, docs/messages.md).
        """
        cursor = None if after is None else str(after)
        for event in self.transport.stream(f"{API}/events", after=cursor, query=filters):
            yield decode(event.data, EventData)


def _gap(gap: LogGap) -> LogBytes:
    missing = "1 byte is" if gap.missing == 1 else f"{gap.missing} bytes are"
    text = f"\n[myrmidon: {missing} missing here]\n".encode()
    return LogBytes(run=gap.run, stream=gap.stream, offset=gap.offset, data=text)
