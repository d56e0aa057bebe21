"""Submit a graph that was built from calls: its code and large values first, then the document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from myrmidon.functions.graph_builder import Document, GraphBuilder
from myrmidon.functions.native_task import LIBRARY
from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.types import module_name
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.code_zip import CodeZip
from myrmidon.sdk.errors import Conflict
from myrmidon.sdk.function_identity import identities
from myrmidon.sdk.function_server import FunctionServer
from myrmidon.wire.jobs import JobSubmitted

T = TypeVar("T")

UNKNOWN_FILE: Final = "unknown_file"


def submit_graph(
    builder: GraphBuilder,
    fields: Mapping[str, Any],
    packages: CodePackages,
    server: FunctionServer,
    *,
    wait_s: float = 0.0,
) -> JobSubmitted:
    """Store the graph as a job with these fields. ``wait_s``: how long to wait for the first results."""
    return submit_with_code(builder, fields, packages.collect(builder.functions()), server, wait_s=wait_s)


def submit_with_code(
    builder: GraphBuilder,
    fields: Mapping[str, Any],
    zips: Mapping[str, CodeZip],
    server: FunctionServer,
    *,
    wait_s: float = 0.0,
) -> JobSubmitted:
    """Store the graph as a job with these fields; ``zips`` has the code by module.

    A job with an external id attaches to what exists, or supersedes it.
    """
    document = document_of(builder, fields, zips)
    files = {**document.uploads, **{packed.digest: packed.data for packed in zips.values()}}
    return _with_files(server, files, lambda: server.submit(document.text, fields.get("external_id"), wait_s))


def submit_graphs(
    graphs: Sequence[tuple[GraphBuilder, Mapping[str, Any]]], packages: CodePackages, server: FunctionServer
) -> list[JobSubmitted]:
    """Store several graphs with their fields as jobs in one transaction: all of them, or none.

    They may have up to MAX_JOBS tasks together.
    """
    files: dict[str, bytes] = {}
    documents: list[bytes] = []
    for builder, fields in graphs:
        zips = packages.collect(builder.functions())
        document = document_of(builder, fields, zips)
        documents.append(document.text)
        files.update(document.uploads)
        files.update({packed.digest: packed.data for packed in zips.values()})
    return _with_files(server, files, lambda: server.submit_all(documents))


def _with_files(server: FunctionServer, files: Mapping[str, bytes], submit: Callable[[], T]) -> T:
    """Upload files, then submit; once more if one of them was deleted since the server was asked for it."""
    server.upload(files)
    try:
        return submit()
    except Conflict as error:
        if error.code != UNKNOWN_FILE:
            raise
        server.forget_uploads()
        server.upload(files)
        return submit()


def document_of(builder: GraphBuilder, fields: Mapping[str, Any], zips: Mapping[str, CodeZip]) -> Document:
    """The document of a graph with the digests of its code, and the identities of its functions.

    Libraries that no node calls are named beside the nodes: the server keeps them for what the nodes submit.
    """

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
