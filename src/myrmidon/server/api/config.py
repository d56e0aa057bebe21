"""The settings folder as it is in force: which files, since when, by whom, and how each came to be what it is."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from myrmidon.model.errors import NotFound
from myrmidon.model.ids import Micros
from myrmidon.server.api.common import Limit
from myrmidon.server.calls import ADMINS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.tables import settings_version as configs
from myrmidon.store.tables.settings_version import FOLDER, Version

_LAST = (1 << 63) - 1


class VersionInfo(Struct, frozen=True, kw_only=True):
    """One version of a file, or of the folder as a whole."""

    version: str
    created_at: Micros
    who: str
    content: str | None = None


class FleetSettings(Struct, frozen=True, kw_only=True):
    """``version`` empty: nothing was ever decided. ``in_force``: whether this server uses it."""

    version: str
    created_at: Micros | None
    who: str
    in_force: bool
    files: dict[str, VersionInfo]


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``file`` is a name as ``bots.toml`` or ``scripts/lab.py``; the folder as a whole when left out."""

    file: Annotated[str, Meta(max_length=128)] | None = None
    limit: Limit = 20
    cursor: str | None = None


class History(Struct, frozen=True):
    versions: list[VersionInfo]
    cursor: str | None


async def get_config(context: ServerContext, call: Call) -> FleetSettings:
    """What is in force for all servers, without the texts."""
    found = await context.db.read(configs.current)
    if found is None:
        return FleetSettings(version="", created_at=None, who="", in_force=True, files={})
    files = {name: _shown(one, text=False) for name, one in found.files.items()}
    return FleetSettings(
        version=found.version,
        created_at=found.created_at,
        who=found.who,
        in_force=found.position == context.state.config.position,
        files=files,
    )


async def list_history(context: ServerContext, call: Call) -> History:
    """Every version that was ever in force, newest first; with its text, if it is a file's."""
    query: HistoryQuery = call.query
    kind, name = query.file or FOLDER, f"config {query.file}"
    before = int(read_cursor(context.keys.cursor, name, query.cursor)) if query.cursor else _LAST
    found = await context.db.read(lambda tx: configs.history(tx, kind, before=before, n=query.limit))
    if query.file is not None and not found and not query.cursor:
        raise NotFound("file of the settings folder", query.file)
    more = show_cursor(context.keys.cursor, name, str(found[-1].position)) if len(found) == query.limit else None
    return History([_shown(one, text=kind != FOLDER) for one in found], more)


def _shown(one: Version, *, text: bool) -> VersionInfo:
    content = one.content if text else None
    return VersionInfo(version=one.version, created_at=one.created_at, who=one.who, content=content)


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/config",
        call=get_config,
        who=ADMINS,
        out=FleetSettings,
        summary="The settings folder that is in force",
    ),
    Route(
        method="GET",
        path="/api/v1/config/history",
        call=list_history,
        who=ADMINS,
        query=HistoryQuery,
        out=History,
        summary="Versions of the settings folder, or of one of its files",
    ),
)
