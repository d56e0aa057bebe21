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


FileName = Annotated[str, Meta(min_length=1, max_length=128)]


class ConfigChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts of files by name, such as ``bots.toml`` or ``scripts/lab.py``; null removes a file. Other files stay.

    ``base``: the version that the change was made from; another active version is a conflict. ``dry_run``: only check.
    """

    files: Annotated[dict[FileName, str | None], Meta(min_length=1, max_length=100)]
    base: str | None = None
    dry_run: bool = False


class ConfigChanged(Struct, frozen=True, kw_only=True):
    """The version of the configuration with the change."""

    version: str
    dry_run: bool


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``file`` is a name such as ``bots.toml`` or ``scripts/lab.py``; the whole folder if absent."""

    file: FileName | None = None
    limit: Limit = 20
    cursor: str | None = None


class History(Struct, frozen=True):
    versions: list[VersionInfo]
    cursor: str | None
