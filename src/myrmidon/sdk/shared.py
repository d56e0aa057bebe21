"""Shared values: stored once, read by many calls of many jobs, deleted with their last reference.

with client.share(table) as shared:
    print(list(client.map(look_up, words, shared)))
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

from myrmidon.functions.annotations import annotation_of
from myrmidon.functions.argument_checks import texts
from myrmidon.functions.shared_ref import SharedRef
from myrmidon.functions.types import type_string
from myrmidon.functions.values import MAX_BYTES, decode, encode, too_large
from myrmidon.sdk.errors import Conflict
from myrmidon.sdk.function_server import FunctionServer
from myrmidon.sdk.graph_submission import UNKNOWN_FILE
from myrmidon.wire.shared_values import MAX_INLINE_BYTES, SharedValueInfo

T = TypeVar("T")


class Shared(SharedRef, Generic[T]):
    """A shared value that the resource group references. Pass ``ref``, or what a with statement gives, to calls.

    A job that has such a call references the value too, so it may be dropped as soon as the calls are submitted.
    """

    def __init__(self, server: FunctionServer, value_id: str, type_: str, annotation: Any) -> None:
        super().__init__(value_id, type_)
        self._server = server
        self._annotation = annotation

    @property
    def ref(self) -> T:
        """Stands for the value in calls of task functions; type checkers see the value."""
        return cast("T", self)

    def get(self) -> T:
        """Read the value from the server."""
        value: T = decode(self._server.value(self.id), self._annotation)
        return value

    def drop(self) -> bool:
        """Drop the reference of the resource group; whether it was the last one, so that the value was deleted.

        A value that does not exist any more is no error.
        """
        return self._server.drop_shared(self.id)

    def __enter__(self) -> T:
        return self.ref

    def __exit__(self, *_exception: object) -> None:
        self.drop()

    async def __aenter__(self) -> T:
        return self.ref

    async def __aexit__(self, *_exception: object) -> None:
        await asyncio.to_thread(self.drop)


def share(server: FunctionServer, value: T, annotation: Any, localities: Sequence[str]) -> Shared[T]:
    """Store a value. Raises TypeProblem, which is a TypeError, if it does not have the type of the annotation.

    Raises ValueError if it is too large.
    """
    texts("localities", localities, "['10.2.0.7']")
    annotation = annotation_of(value) if annotation is None else annotation
    data = encode(value, annotation)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{too_large('the value', len(data))}; share it in pieces")
    made = _store(server, type_string(annotation), data, localities)
    return Shared(server, made.id, made.type, annotation)


def keep(server: FunctionServer, value_id: str, type_: str, annotation: Any) -> Shared[Any]:
    """Reference a shared value that a job has made."""
    server.keep_shared(value_id)
    return Shared(server, value_id, type_, annotation)


def _store(server: FunctionServer, type_: str, data: bytes, localities: Sequence[str]) -> SharedValueInfo:
    if len(data) <= MAX_INLINE_BYTES:
        return server.share(type_, {"inline": base64.b64encode(data).decode()}, localities)
    digest = hashlib.sha256(data).hexdigest()
    payload = {"digest": digest, "size": len(data)}
    server.upload({digest: data})
    try:
        return server.share(type_, payload, localities)
    except Conflict as error:
        if error.code != UNKNOWN_FILE:
            raise
        server.forget_uploads()  # deleted since the server was asked
        server.upload({digest: data})
        return server.share(type_, payload, localities)
