"""Calls about stored files, the values of jobs, and the results of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from myrmidon.sdk.api.caller import API, Caller, decode, segment
from myrmidon.sdk.transport import new_key
from myrmidon.wire.files import MAX_FILES_PER_CALL, MissingFiles, StoredFile
from myrmidon.wire.values import TYPE_HEADER, Results, TaskOutcome, ValueList

_BYTES: Final = "application/octet-stream"


class ValueContent(NamedTuple):
    """The content of a value in MessagePack, and its type."""

    type: str
    data: bytes


class ValueCalls(Caller):
    def missing_files(self, sizes: Mapping[str, int], *, group: str | None = None) -> list[str]:
        """Which of these files (sizes by digest) the resource group does not have; the others are kept for a day."""
        missing: list[str] = []
        files = [{"digest": digest, "size": size} for digest, size in sizes.items()]
        for start in range(0, len(files), MAX_FILES_PER_CALL):
            body: dict[str, Any] = {"files": files[start : start + MAX_FILES_PER_CALL]}
            if group is not None:
                body["group"] = group
            missing += self._post("files/missing", MissingFiles, body, None).missing
        return missing

    def put_file(self, digest: str, data: bytes, *, group: str | None = None) -> StoredFile:
        """Store a file by the SHA-256 of its content. May be repeated."""
        path, query = f"{API}/files/{segment(digest)}", {"group": group}
        reply = self.transport.call("PUT", path, data=data, content_type=_BYTES, query=query, key=new_key())
        return decode(reply.data, StoredFile)

    def results(self, task_ids: Sequence[str], *, wait_s: float = 0.0) -> list[TaskOutcome]:
        """Those of the tasks (at most 1,000) that have ended; waits until at least one has."""
        body = {"task_ids": list(task_ids), "wait_s": wait_s}
        return self.call("POST", "results", Results, body=body, wait_s=wait_s).results

    def job_values(self, job_id: str, *, limit: int = 100, cursor: str | None = None) -> ValueList:
        """The constants and outputs of the next ``limit`` tasks of a job."""
        query = {"limit": limit, "cursor": cursor}
        return self.call("GET", f"jobs/{segment(job_id)}/values", ValueList, query=query)

    def value(self, value_id: str) -> ValueContent:
        """The content of a value that is written."""
        reply = self.transport.call("GET", f"{API}/values/{segment(value_id)}")
        return ValueContent(reply.headers.get(TYPE_HEADER, ""), reply.data)
