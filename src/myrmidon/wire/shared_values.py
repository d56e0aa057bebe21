"""Shared values: the bodies, queries and answers of /api/v1/values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.wire.fields import Limit, Micros, Name, TaskId
from myrmidon.wire.files import MAX_FILE_BYTES, Digest

INLINE_BYTES = 1_024
MAX_ADDRESSES = 100
Address = Annotated[str, Meta(min_length=1, max_length=40, examples=["10.0.0.7"])]
"""The address of a machine, as a bot's page shows it."""
JobRef = Annotated[str, Meta(min_length=1, max_length=256)]
"""The id of a job, or its external id."""


class NewPayload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The MessagePack form of a value: up to 1,024 bytes in base64, or an uploaded file by its digest and size."""

    inline: Annotated[bytes, Meta(max_length=INLINE_BYTES)] | None = None
    digest: Digest | None = None
    size: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)] | None = None


class NewSharedValue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that many jobs can read. The resource group references it, or only ``job``.

    ``localities``: addresses of machines that have the data; bots there are preferred for tasks that read the value.
    """

    type: Annotated[str, Meta(min_length=1, max_length=1024, examples=["List<string>"])]
    payload: NewPayload
    group: Name | None = None
    job: JobRef | None = None
    localities: Annotated[list[Address], Meta(max_length=MAX_ADDRESSES)] = []


class SharedValuesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which shared values: all that the caller may see, or those that a resource group or a job references."""

    limit: Limit = 100
    cursor: str | None = None
    group: Name | None = None
    job: JobRef | None = None


class SharedValueInfo(Struct, frozen=True):
    """A shared value exists while a resource group or a job references it. ``digest``: where its bytes are, if they are
    not in the database."""

    id: TaskId
    type: str
    size: int
    digest: str | None
    created_at: Micros
    num_groups: int
    num_jobs: int
    localities: list[str] = []


class SharedValueDetails(Struct, frozen=True, kw_only=True):
    """A shared value with the resource groups and jobs that reference it, as far as the caller may see them; at most
    100 of each."""

    value: SharedValueInfo
    groups: list[str]
    jobs: list[str]


class GroupValues(Struct, frozen=True, kw_only=True):
    """The shared values that a resource group references by itself."""

    group: str
    num_values: int
    num_bytes: int


class SharedValueList(Struct, frozen=True, kw_only=True):
    values: list[SharedValueInfo]
    totals: list[GroupValues]
    cursor: str | None


class RefChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The owner of the reference: a job or a resource group; default: the group of the token."""

    group: Name | None = None
    job: JobRef | None = None


class Dropped(Struct, frozen=True):
    """``deleted``: it was the last reference, so the value was deleted."""

    deleted: bool


class LocalityChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses to add and to remove; both may be done before."""

    add: Annotated[list[Address], Meta(max_length=MAX_ADDRESSES)] = []
    drop: Annotated[list[Address], Meta(max_length=MAX_ADDRESSES)] = []


class Localities(Struct, frozen=True):
    """The addresses of the machines that have the data of a value."""

    addresses: list[str]
