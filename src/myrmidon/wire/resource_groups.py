"""Resource groups: the bodies, queries and answers of /api/v1/groups."""

from __future__ import annotations

from msgspec import Struct

from myrmidon.wire.fields import Micros, Name


class NewGroup(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class GroupInfo(Struct, frozen=True):
    name: str
    created_at: Micros
    deleting: bool


class GroupList(Struct, frozen=True):
    groups: list[GroupInfo]
    cursor: str | None


class GroupDetails(Struct, frozen=True, kw_only=True):
    """A resource group and what it owns."""

    name: str
    created_at: Micros
    deleting: bool
    """It is being deleted: nothing can be added to it."""
    jobs: dict[str, int]
    """Jobs by state."""
    tasks: dict[str, int]
    """Tasks by state; DEDUPED are those that an earlier result has answered."""
    tasks_complete: bool
    """False if only those among the newest 100,000 tasks of the server were counted."""
    num_running: int
    """Runs that have not ended."""
    num_values: int
    """Shared values that the group references by itself, and their bytes."""
    value_bytes: int
    num_files: int
    """Files that the group has stored, and their bytes."""
    file_bytes: int
    num_webhooks: int


class DeleteGroupQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """``force``: cancel what has not ended; the group is deleted when its last running task has ended."""

    force: bool = False
