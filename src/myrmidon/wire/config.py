"""The configuration folder: the queries and answers of /api/v1/config."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.wire.fields import Limit, Micros


class VersionInfo(Struct, frozen=True, kw_only=True):
    """A version of a file, or of the whole folder. ``who`` made the change."""

    version: str
    created_at: Micros
    who: str
    content: str | None = None


class FleetSettings(Struct, frozen=True, kw_only=True):
    """The newest configuration; ``version`` is empty if there is none. ``in_force``: this server uses it."""

    version: str
    created_at: Micros | None
    who: str
    in_force: bool
    files: dict[str, VersionInfo]


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``file`` is a name such as ``bots.toml`` or ``scripts/lab.py``; the whole folder if absent."""

    file: Annotated[str, Meta(max_length=128)] | None = None
    limit: Limit = 20
    cursor: str | None = None


class History(Struct, frozen=True):
    versions: list[VersionInfo]
    cursor: str | None
