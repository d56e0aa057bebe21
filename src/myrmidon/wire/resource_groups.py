"""Resource groups: the bodies and answers of /api/v1/groups."""

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
