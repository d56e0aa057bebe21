"""Values: typed bytes that are written once and passed along the edges of a graph.

A producer's output and its consumers' inputs refer to the same value, so nothing is copied. A value is deleted with
its job; a shared value exists while anything references it. Payloads over the inline limit have a digest only: their
bytes are in the file store.
"""

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from myrmidon.model.task_request import Payload


class Value(Struct, frozen=True, gc=False):
    """A value of a job; no payload until its producer has succeeded.

    ``parts`` are those of a gathered input; the payload is then the shape, and empty for a list of the parts.
    """

    id: int
    type: str
    payload: bytes | None
    digest: str | None
    size: int | None
    parts: Sequence["Value"] | None = None

    @property
    def written(self) -> bool:
        return self.size is not None


class SharedValue(Struct, frozen=True):
    """A value that outlives its job for as long as something references it."""

    id: int
    type: str
    payload: bytes | None
    digest: str | None
    size: int


class GroupOwner(Struct, frozen=True, tag="group"):
    """A resource group holds the reference."""

    resource_group_id: int


class JobOwner(Struct, frozen=True, tag="job"):
    """A job holds the reference, until the job is deleted."""

    resource_group_id: int
    job_id: int


Owner: TypeAlias = GroupOwner | JobOwner


class OutputValue(Struct, frozen=True, gc=False):
    """The value that a run reports for one output position."""

    type: str
    payload: Payload
