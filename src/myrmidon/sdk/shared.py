"""Shared values: stored once, read by many calls of many jobs, deleted with their last reference.

with client.share(table) as shared:
    print(list(client.map(look_up, words, shared)))
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from myrmidon.functions.annotations import annotation_of
from myrmidon.functions.argument_checks import texts
from myrmidon.functions.shared_ref import SharedRef
from myrmidon.functions.types import type_string
from myrmidon.functions.values import INLINE_BYTES, MAX_BYTES, decode, encode, too_large
from myrmidon.sdk.errors import NotFound
from myrmidon.sdk.job_sender import JobSender
from myrmidon.wire.shared_values import SharedValueInfo

T = TypeVar("T")


class Shared(SharedRef, Generic[T]):
    """A shared value that the resource group references. Pass ``ref``, or what a with statement gives, to calls.

    A job that has such a call references the value too, so it may be dropped as soon as the calls are submitted.
    """

    def __init__(self, sender: JobSender, value_id: str, type_: str, annotation: Any) -> None:
        super().__init__(value_id, type_)
        self._sender = sender
        self._annotation = annotation

    @property
    def ref(self) -> T:
        """Stands for the value in calls of task functions; type checkers see the value."""
        return cast("T", self)

    def get(self) -> T:
        """Read the value from the server."""
        value: T = decode(self._sender.client.value(self.id).data, self._annotation)
        return value

    def drop(self) -> bool:
        """Drop the reference of the resource group; whether it was the last one, so that the value was deleted.

        A value that does not exist any more is no error.
        """
        return drop(self._sender, self.id)

    def __enter__(self) -> T:
        return self.ref

    def __exit__(self, *_exception: object) -> None:
        self.drop()

    async def __aenter__(self) -> T:
        return self.ref

    async def __aexit__(self, *_exception: object) -> None:
        await asyncio.to_thread(self.drop)


def share(sender: JobSender, value: T, annotation: Any, localities: Sequence[str]) -> Shared[T]:
    """Store a value. Raises TypeProblem, which is a TypeError, if it does not have the type of the annotation.

    Raises ValueError if it is too large.
    """
    texts("localities", localities, "['10.2.0.7']")
    annotation = annotation_of(value) if annotation is None else annotation
    data = encode(value, annotation)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{too_large('the value', len(data))}; share it in pieces")
    made = store(sender, type_string(annotation), data, localities)
    return Shared(sender, made.id, made.type, annotation)


def store(
    sender: JobSender, type_: str, data: bytes, localities: Sequence[str], job: str | None = None
) -> SharedValueInfo:
    """Store an encoded value, which the resource group of the sender references, or this job."""

    def create(payload: Mapping[str, Any]) -> SharedValueInfo:
        return sender.client.create_value(type_, payload, group=sender.group, job=job, localities=localities)

    if len(data) <= INLINE_BYTES:
        return create({"inline": base64.b64encode(data).decode()})
    digest = hashlib.sha256(data).hexdigest()
    return sender.with_files({digest: data}, lambda: create({"digest": digest, "size": len(data)}))


def keep(sender: JobSender, value_id: str, type_: str, annotation: Any) -> Shared[Any]:
    """Reference a shared value that a job has made."""
    sender.client.ref_value(value_id, group=sender.group)
    return Shared(sender, value_id, type_, annotation)


def drop(sender: JobSender, value_id: str) -> bool:
    """Drop the reference of the resource group to a shared value; whether the value was deleted with it."""
    try:
        return sender.client.unref_value(value_id, group=sender.group).deleted
    except NotFound:
        return False
