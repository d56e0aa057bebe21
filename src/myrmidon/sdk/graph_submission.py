"""Submit a graph that was built from calls: its code and large values first, then the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from myrmidon.functions.graph_builder import Document, GraphBuilder
from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.types import module_name
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.code_zip import CodeZip
from myrmidon.sdk.errors import Conflict
from myrmidon.sdk.function_identity import identities
from myrmidon.sdk.function_server import FunctionServer
from myrmidon.wire.jobs import JobSubmitted

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
    server.upload(files)
    try:
        return server.submit(document.text, fields.get("external_id"), wait_s)
    except Conflict as error:
        if error.code != UNKNOWN_FILE:
            raise
        server.forget_uploads()  # deleted since the server was asked
        server.upload(files)
        return server.submit(document.text, fields.get("external_id"), wait_s)


def document_of(builder: GraphBuilder, fields: Mapping[str, Any], zips: Mapping[str, CodeZip]) -> Document:
    """The document of a graph with the digests of its code, and the identities of its functions."""

    def identity_of(function: TaskFunction[Any, Any]) -> str:
        if function.native is not None:
            return ""  # the declaration does not show what is in the library
        packed = zips.get(module_name(function.code_module))
        return identities(packed).of(function) if packed is not None else ""

    return builder.document(fields, lambda module: zips[module].digest if module in zips else "", identity_of)
