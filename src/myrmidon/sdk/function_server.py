"""The calls that jobs of functions make: large values and code, submission, results."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from myrmidon.sdk.api.caller import API, decode, segment
from myrmidon.sdk.api.calls import Api
from myrmidon.sdk.errors import CallFailed, NotFound
from myrmidon.sdk.transport import new_key
from myrmidon.wire.files import MAX_FILES_PER_CALL
from myrmidon.wire.jobs import JobCheck, JobsSubmitted, JobSubmitted
from myrmidon.wire.shared_values import SharedValueInfo
from myrmidon.wire.values import MAX_RESULTS, TaskOutcome

MAX_IDS: Final = MAX_RESULTS
_LOG_BYTES: Final = 8_192


class FunctionServer:
    """Calls one server for one resource group (None: that of the token)."""

    def __init__(self, api: Api, group: str | None = None) -> None:
        self.api = api
        self._group = group
        self._uploaded: set[str] = set()
        self.max_wait_s = 0.0
        """How long the server holds the answer to a submit: 0 until it has said so in an answer."""

    def upload(self, files: Mapping[str, bytes]) -> None:
        """Store files by digest; those that the server has are not sent."""
        new = {digest: len(data) for digest, data in files.items() if digest not in self._uploaded}
        pending = iter(new.items())
        while chunk := dict(islice(pending, MAX_FILES_PER_CALL)):
            for digest in self.api.missing_files(chunk, group=self._group).missing:
                self.api.upload_file(digest, files[digest], group=self._group)
        # Remembered for this program only: the server deletes files that nothing uses after a day at the earliest.
        self._uploaded.update(new)

    def forget_uploads(self) -> None:
        """Ask again which files the server has: it has said that one is missing."""
        self._uploaded.clear()

    def submit(self, document: bytes, external_id: str | None = None, wait_s: float = 0.0) -> JobSubmitted:
        """Submit a graph document that is encoded already; with an external id, resume the job that has it.

        ``wait_s``: how long to wait for the first results, if the server can do that.
        """
        method, path = ("POST", "jobs") if external_id is None else ("PUT", f"jobs/{segment(external_id)}")
        wait_s = min(wait_s, self.max_wait_s)
        body = self._body(document, resume=external_id is not None, wait_s=wait_s)
        reply = self.api.transport.call(method, f"{API}/{path}", data=body, key=new_key(), wait_s=wait_s)
        submitted = decode(reply.data, JobSubmitted)
        self.max_wait_s = submitted.max_wait_s
        return submitted

    def submit_all(self, documents: Sequence[bytes]) -> list[JobSubmitted]:
        """Submit graph documents that are encoded already: all are stored, or none."""
        body = b'{"jobs":[%b],"group":%b}' % (b",".join(documents), msgspec.json.encode(self._group))
        answer = self.api.transport.call("POST", f"{API}/jobs/batch", data=body, key=new_key())
        return decode(answer.data, JobsSubmitted).jobs

    def check(self, document: bytes, *, resume: bool) -> JobCheck:
        """What would happen to a graph document that is encoded already."""
        body = self._body(document, resume=resume)
        return decode(self.api.transport.call("POST", f"{API}/jobs/check", data=body).data, JobCheck)

    def _body(self, document: bytes, *, resume: bool, wait_s: float = 0.0) -> bytes:
        further = {**({"resume": True} if resume else {}), **({"wait_s": wait_s} if wait_s else {})}
        fields = msgspec.json.encode({"group": self._group, **further})
        return b'{"job":%b,%b' % (document, fields[1:])

    def share(self, type_string: str, payload: Mapping[str, Any], localities: Sequence[str]) -> SharedValueInfo:
        """Create a shared value of this resource group."""
        return self.api.create_value(type_string, payload, group=self._group, localities=localities)

    def keep_shared(self, value_id: str) -> None:
        """Add a reference of this resource group to a shared value that one of its jobs references."""
        self.api.ref_value(value_id, group=self._group)

    def drop_shared(self, value_id: str) -> bool:
        """Drop the reference of this resource group to a shared value; whether the value was deleted with it."""
        try:
            return self.api.unref_value(value_id, group=self._group).deleted
        except NotFound:
            return False

    def results(self, task_ids: Sequence[str], wait_s: float) -> list[TaskOutcome]:
        """Those of the tasks (at most 1,000) that have ended; waits until at least one has."""
        return self.api.results(task_ids, wait_s=wait_s).results

    def value(self, value_id: str) -> bytes:
        """The MessagePack form of a value."""
        return self.api.value(value_id).data

    def log_tail(self, task_id: str) -> bytes:
        """The last bytes of the task's log."""
        return self.api.log_tail(task_id, num_bytes=_LOG_BYTES)

    def last_message(self, task_id: str) -> str:
        """What the bot, or the server, has said about the end of the task's last run; empty if nothing is known."""
        with contextlib.suppress(CallFailed):
            runs = self.api.task(task_id).runs
            return str((runs[-1].evidence or {}).get("message", "")) if runs else ""
        return ""

    def cancel(self, task_id: str) -> str:
        """Cancel a task that has not started; the state afterwards."""
        return self.api.cancel(task_id, kill_running=False).state
