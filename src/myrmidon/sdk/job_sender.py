"""Sends graphs that were built from calls: their code and large values first, then the documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec.json import encode

from myrmidon.functions.graph_builder import Document, GraphBuilder
from myrmidon.functions.native_task import LIBRARY
from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.types import module_name
from myrmidon.sdk.api.caller import segment
from myrmidon.sdk.changed_globals import warn_of_changed_globals
from myrmidon.sdk.client import Client
from myrmidon.sdk.code_zip import CodeZip
from myrmidon.sdk.errors import Conflict
from myrmidon.sdk.function_identity import identities
from myrmidon.sdk.transport import new_key
from myrmidon.wire.files import MAX_FILES_PER_CALL
from myrmidon.wire.jobs import JobCheck, JobsSubmitted, JobSubmitted

T = TypeVar("T")
Graph = tuple[GraphBuilder, Mapping[str, Any], Mapping[str, CodeZip]]
"""A graph, the fields of its job, and the code of its functions by module."""

UNKNOWN_FILE: Final = "unknown_file"


class JobSender:
    """Sends the jobs of one resource group (None: that of the token)."""

    def __init__(self, client: Client, group: str | None = None) -> None:
        self.client = client
        self.group = group
        self._uploaded: set[str] = set()

    def send(self, graph: Graph, *, stream: str = "") -> JobSubmitted:
        """Store a graph as a job. One with an external id attaches to what exists, or supersedes it.

        ``stream``: the stream that is to get the results of its tasks.
        """
        warn_of_changed_globals(graph[0].functions(), graph[2])
        external_id = graph[1].get("external_id")
        document = _document(graph)
        body = self._body(b'"job":' + document.text, {"resume": external_id is not None, "stream": stream})
        method, path = ("POST", "jobs") if external_id is None else ("PUT", f"jobs/{segment(external_id)}")
        store = partial(self.client.call, method, path, JobSubmitted, data=body, key=new_key())
        return self.with_files(_files(graph, document), store)

    def send_all(self, graphs: Sequence[Graph]) -> list[JobSubmitted]:
        """Store several graphs as jobs in one transaction: all of them, or none. They have up to MAX_JOBS tasks."""
        documents = [_document(graph) for graph in graphs]
        files: dict[str, bytes] = {}
        for graph, document in zip(graphs, documents, strict=True):
            files.update(_files(graph, document))
        body = self._body(b'"jobs":[%b]' % b",".join(one.text for one in documents), {})
        store = partial(self.client.call, "POST", "jobs/batch", JobsSubmitted, data=body, key=new_key())
        return self.with_files(files, store).jobs

    def check(self, graph: Graph) -> JobCheck:
        """What would happen to a graph; nothing is stored."""
        body = self._body(b'"job":' + _document(graph).text, {"resume": "external_id" in graph[1]})
        return self.client.call("POST", "jobs/check", JobCheck, data=body)

    def _body(self, documents: bytes, further: Mapping[str, Any]) -> bytes:
        """A body with documents that are encoded already."""
        given = {name: value for name, value in further.items() if value}
        return b"{%b,%b" % (documents, encode({"group": self.group, **given})[1:])

    def with_files(self, files: Mapping[str, bytes], submit: Callable[[], T]) -> T:
        """Upload files, then submit; once more if one of them was deleted since the server was asked for it."""
        self.upload(files)
        try:
            return submit()
        except Conflict as error:
            if error.code != UNKNOWN_FILE:
                raise
            self._uploaded.clear()
            self.upload(files)
            return submit()

    def upload(self, files: Mapping[str, bytes]) -> None:
        """Store files by digest; those that the server has are not sent."""
        new = {digest: len(data) for digest, data in files.items() if digest not in self._uploaded}
        pending = iter(new.items())
        while chunk := dict(islice(pending, MAX_FILES_PER_CALL)):
            for digest in self.client.missing_files(chunk, group=self.group).missing:
                self.client.upload_file(digest, files[digest], group=self.group)
        # Remembered for this program only: the server deletes files that nothing uses after a day at the earliest.
        self._uploaded.update(new)


def _files(graph: Graph, document: Document) -> dict[str, bytes]:
    return {**document.uploads, **{packed.digest: packed.data for packed in graph[2].values()}}


def _document(graph: Graph) -> Document:
    """The document of a graph with the digests of its code, and the identities of its functions.

    Libraries that no node calls are named beside the nodes: the server keeps them for what the nodes submit.
    """
    builder, fields, zips = graph

    def identity_of(function: TaskFunction[Any, Any]) -> str:
        if function.native is not None:
            return ""  # the declaration does not show what is in the library
        packed = zips.get(module_name(function.code_module))
        return identities(packed).of(function) if packed is not None else ""

    called = {module_name(one.code_module) for one in builder.functions()}
    further = sorted({zips[one].digest for one in zips if one.startswith(LIBRARY) and one not in called})
    if further:
        fields = {**fields, "code": further}
    return builder.document(fields, lambda module: zips[module].digest if module in zips else "", identity_of)
