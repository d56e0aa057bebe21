"""Calls about values, results and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import urllib3

from myrmidon.sdk.api import caller
from myrmidon.sdk.api.caller import API, Caller, segment
from myrmidon.sdk.transport import new_key
from myrmidon.wire.fields import Done
from myrmidon.wire.files import MissingFiles, StoredFile
from myrmidon.wire.function_calls import FunctionCall
from myrmidon.wire.shared_values import Dropped, Localities, SharedValueDetails, SharedValueInfo, SharedValueList
from myrmidon.wire.values import TYPE_HEADER, Followed, Results, TaskValues, ValueList


class ValueContent(NamedTuple):
    """The content of a value in MessagePack, and its type."""

    type: str
    data: bytes


class SharedValueCalls(Caller):
    def create_value(
        self,
        type_string: str,
        payload: Mapping[str, Any],
        *,
        group: str | None = None,
        job: str | None = None,
        localities: Sequence[str] = (),
        key: str | None = None,
    ) -> SharedValueInfo:
        """Create a shared value. ``payload`` is ``{"inline": base64}`` with up to 1,024 bytes of MessagePack, or
        ``{"digest": ..., "size": ...}`` of an uploaded file."""
        body = {"type": type_string, "payload": payload, "group": group, "job": job, "localities": list(localities)}
        return self._post("values", SharedValueInfo, body, key)

    def shared_values(self, **filters: Any) -> SharedValueList:
        """One page of shared values with their sizes and references. Filters: group, job, limit, cursor."""
        return self.call("GET", "values", SharedValueList, query=filters)

    def task_values(self, task_id: str) -> TaskValues:
        """The inputs of a task with their sources, and its outputs."""
        return self.call("GET", f"tasks/{segment(task_id)}/values", TaskValues)

    def shared_value(self, value_id: str) -> SharedValueDetails:
        """A shared value, and who references it."""
        return self.call("GET", f"values/{segment(value_id)}/info", SharedValueDetails)

    def ref_value(
        self, value_id: str, *, group: str | None = None, job: str | None = None, key: str | None = None
    ) -> Done:
        """Reference a shared value, so that it is kept."""
        return self._post(f"values/{segment(value_id)}/ref", Done, {"group": group, "job": job}, key)

    def unref_value(
        self, value_id: str, *, group: str | None = None, job: str | None = None, key: str | None = None
    ) -> Dropped:
        """Drop a reference to a shared value; the last one deletes it."""
        return self._post(f"values/{segment(value_id)}/unref", Dropped, {"group": group, "job": job}, key)

    def localities(self, value_id: str) -> Localities:
        """The addresses of the machines that have the data of a shared value."""
        return self.call("GET", f"values/{segment(value_id)}/localities", Localities)

    def change_localities(
        self, value_id: str, *, add: Sequence[str] = (), drop: Sequence[str] = (), key: str | None = None
    ) -> Localities:
        """Record which machines have the data of a shared value, or have it no longer."""
        body = {"add": list(add), "drop": list(drop)}
        return self._post(f"values/{segment(value_id)}/localities", Localities, body, key)


class ValueCalls(Caller):
    def results(self, task_ids: Sequence[str], *, wait_s: float = 25.0) -> Results:
        """The tasks (at most 1,000) that have ended, with their outputs; waits until at least one has."""
        body = {"task_ids": list(task_ids), "wait_s": wait_s}
        return self.call("POST", "results", Results, body=body, wait_s=wait_s)

    def open_results(self, task_ids: Sequence[str]) -> urllib3.BaseHTTPResponse:
        """Open a stream of the results of these tasks; its first event has the id for ``follow_results``."""
        return self.transport.open("POST", f"{API}/results/streams", body={"task_ids": list(task_ids)})

    def follow_results(self, stream: str, task_ids: Sequence[str]) -> Followed:
        """Add tasks to an open stream of results. Raises NotFound if it is not open on the server that answers."""
        body = {"task_ids": list(task_ids)}
        return self.call("POST", f"results/streams/{segment(stream)}", Followed, body=body)

    def job_values(self, job_id: str, *, limit: int = 100, cursor: str | None = None) -> ValueList:
        """The constants and outputs of the next ``limit`` tasks of a job."""
        return self.call("GET", f"jobs/{segment(job_id)}/values", ValueList, query={"limit": limit, "cursor": cursor})

    def value(self, value_id: str) -> ValueContent:
        """The content of a value that is written."""
        reply = self.transport.call("GET", f"{API}/values/{segment(value_id)}")
        return ValueContent(reply.headers.get(TYPE_HEADER, ""), reply.data)

    def missing_files(self, sizes: Mapping[str, int], *, group: str | None = None) -> MissingFiles:
        """Which of the files, given as sizes by digest (at most 1,000), the resource group has not stored."""
        body: dict[str, Any] = {"files": [{"digest": digest, "size": size} for digest, size in sizes.items()]}
        return self._post("files/missing", MissingFiles, body | {"group": group}, None)

    def file(self, digest: str, *, group: str | None = None) -> bytes:
        """The content of a file that the resource group has stored."""
        return self.transport.call("GET", f"{API}/files/{segment(digest)}", query={"group": group}).data

    def function_call(self, task_id: str) -> FunctionCall:
        """The function that a task calls, its code and its arguments."""
        return self.call("GET", f"tasks/{segment(task_id)}/call", FunctionCall)

    def upload_file(self, digest: str, content: bytes, *, group: str | None = None) -> StoredFile:
        """Store a file under the SHA-256 digest of its content. Storing it again changes nothing."""
        reply = self.transport.call(
            "PUT",
            f"{API}/files/{segment(digest)}",
            data=content,
            content_type="application/octet-stream",
            query={"group": group},
            key=new_key(),
        )
        return caller.decode(reply.data, StoredFile)
