"""Calls about values, results and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from myrmidon.sdk.api import caller
from myrmidon.sdk.api.caller import API, Caller, segment
from myrmidon.sdk.transport import new_key
from myrmidon.wire.files import MissingFiles, StoredFile
from myrmidon.wire.values import TYPE_HEADER, Results, ValueList


class ValueContent(NamedTuple):
    """The content of a value in MessagePack, and its type."""

    type: str
    data: bytes


class ValueCalls(Caller):
    def results(self, task_ids: Sequence[str], *, wait_s: float = 25.0) -> Results:
        """Those of the tasks (at most 1,000) that have ended, with their outputs; waits until at least one has."""
        body = {"task_ids": list(task_ids), "wait_s": wait_s}
        return self.call("POST", "results", Results, body=body, wait_s=wait_s)

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
