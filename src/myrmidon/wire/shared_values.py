"""Shared values: /api/v1/values."""

from __future__ import annotations

from msgspec import Struct

from myrmidon.wire.fields import Micros


class SharedValueInfo(Struct, frozen=True, kw_only=True):
    """A shared value exists while a resource group or a job references it. ``digest``: where its bytes are, if they are
    not in the database."""

    id: str
    type: str
    size: int
    digest: str | None
    created_at: Micros
    num_groups: int
    num_jobs: int


class GroupValues(Struct, frozen=True, kw_only=True):
    """The shared values that a resource group references by itself."""

    group: str
    num_values: int
    num_bytes: int


class SharedValueList(Struct, frozen=True, kw_only=True):
    values: list[SharedValueInfo]
    totals: list[GroupValues]
    cursor: str | None
