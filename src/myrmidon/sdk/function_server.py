"""The calls that jobs of functions make: large values and code, submission, results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from myrmidon.sdk.api.caller import decode
from myrmidon.sdk.transport import Transport, new_key
from myrmidon.wire.jobs import JobSubmitted

API: Final = "/api/v1"
MAX_IDS: Final = 1_000


class TaskError(Struct, frozen=True, kw_only=True):
    """The exception that a function has raised."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    args: Any = None
    bases: list[str] = []


class OutputData(Struct, frozen=True, kw_only=True):
    """An output; ``inline`` is its MessagePack form if it is small."""

    value_id: str
    type: str
    size: int | None = None
    inline: bytes | None = None


class Outcome(Struct, frozen=True, kw_only=True):
    """How a task has ended."""

    task_id: str
    state: str
    reason: str = ""
    bot_id: str | None = None
    run: str | None = None
    exit_code: int | None = None
    error: TaskError | None = None
    outputs: list[OutputData] = []


class _Outcomes(Struct, frozen=True):
    results: list[Outcome]


class _Missing(Struct, frozen=True):
    missing: list[str]


class FunctionServer:
    """Calls one server for one resource group (None: that of the token)."""

    def __init__(self, transport: Transport, group: str | None = None) -> None:
        self._transport = transport
        self._group = group
        self._uploaded: set[str] = set()

    def upload(self, files: Mapping[str, bytes]) -> None:
        """Store files by digest; those that the server has are not sent."""
        new = [digest for digest in files if digest not in self._uploaded]
        for start in range(0, len(new), MAX_IDS):
            chunk = new[start : start + MAX_IDS]
            body = {"files": [{"digest": digest, "size": len(files[digest])} for digest in chunk]}
            if self._group is not None:
                body["group"] = self._group  # type: ignore[assignment]
            reply = self._transport.call("POST", f"{API}/files/missing", body=body)
            for digest in decode(reply.data, _Missing).missing:
                self._put(digest, files[digest])
        # Remembered for this program only: the server deletes files that nothing uses after a day at the earliest.
        self._uploaded.update(new)

    def _put(self, digest: str, data: bytes) -> None:
        query = {"group": self._group} if self._group is not None else None
        content = "application/octet-stream"
        self._transport.call("PUT", f"{API}/files/{digest}", data=data, content_type=content, query=query)

    def forget_uploads(self) -> None:
        """Ask again which files the server has: it has said that one is missing."""
        self._uploaded.clear()

    def submit(self, document: bytes) -> JobSubmitted:
        """Submit a graph document that is encoded already."""
        group = msgspec.json.encode(self._group)
        body = b'{"job":%b,"group":%b}' % (document, group)
        reply = self._transport.call("POST", f"{API}/jobs", data=body, key=new_key())
        return decode(reply.data, JobSubmitted)

    def results(self, task_ids: Sequence[str], wait_s: float) -> list[Outcome]:
        """Those of the tasks (at most 1,000) that have ended; waits until at least one has."""
        body = {"task_ids": list(task_ids), "wait_s": wait_s}
        return decode(self._transport.call("POST", f"{API}/results", body=body, wait_s=wait_s).data, _Outcomes).results

    def value(self, value_id: str) -> bytes:
        """The MessagePack form of a value."""
        return self._transport.call("GET", f"{API}/values/{value_id}").data

    def log_tail(self, task_id: str, num_bytes: int) -> bytes:
        """The last bytes of the task's log."""
        path = f"{API}/tasks/{task_id}/log"
        head = self._transport.call("GET", path, query={"stream": "both", "limit": 1})
        offset = max(0, int(head.headers["X-Log-Length"]) - num_bytes)
        return self._transport.call("GET", path, query={"stream": "both", "offset": offset, "limit": num_bytes}).data

    def cancel(self, task_id: str) -> str:
        """Cancel a task that has not started; the state afterwards."""
        body = {"kill_running": False}
        answer = self._transport.call("POST", f"{API}/tasks/{task_id}/cancel", body=body, key=new_key()).json()
        return str(answer.get("state", "")) if isinstance(answer, dict) else ""
