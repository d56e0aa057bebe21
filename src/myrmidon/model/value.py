"""Values: typed bytes that are written once and flow along the edges of a graph.

A producer's output and its consumers' inputs name the same value, so nothing is
copied. A value belongs to its job and dies with it; a shared value lives while
anything references it. Payloads over the inline limit are named by digest only:
where their bytes lie is the business of the file store, not of this package.
"""

from typing import TypeAlias

from msgspec import Struct

from myrmidon.model.task_request import Payload


class Value(Struct, frozen=True, gc=False):
    """A value of a job; no payload until its producer has succeeded."""

    id: int
    type: str
    payload: bytes | None
    digest: str | None
    size: int | None

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
    """A job holds the reference; it ends with the job."""

    resource_group_id: int
    job_id: int


Owner: TypeAlias = GroupOwner | JobOwner


class OutputValue(Struct, frozen=True, gc=False):
    """What a run hands in for one output position."""

    type: str
    payload: Payload
