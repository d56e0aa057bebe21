"""The configuration folder: the version in force, its files, and the history of both."""

from __future__ import annotations

from myrmidon.model.errors import NotFound
from myrmidon.server.calls import ADMINS, Call, Route
from myrmidon.server.context import ServerContext
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.tables import settings_version as configs
from myrmidon.store.tables.settings_version import FOLDER, Version
from myrmidon.wire.config import FleetSettings, History, HistoryQuery, VersionInfo

_LAST = (1 << 63) - 1


async def get_config(context: ServerContext, call: Call) -> FleetSettings:
    """The newest configuration of all servers, without the contents of its files."""
    folder = await context.db.read(configs.current)
    if folder is None:
        return FleetSettings(version="", created_at=None, who="", in_force=True, files={})
    files = {name: _info(file, with_content=False) for name, file in folder.files.items()}
    return FleetSettings(
        version=folder.version,
        created_at=folder.created_at,
        who=folder.who,
        in_force=folder.position == context.state.config.position,
        files=files,
    )


async def list_history(context: ServerContext, call: Call) -> History:
    """All versions of a file with their contents, or of the folder without; newest first."""
    query: HistoryQuery = call.query
    kind, cursor_kind = query.file or FOLDER, f"config {query.file}"
    before = int(read_cursor(context.keys.cursor, cursor_kind, query.cursor)) if query.cursor else _LAST
    versions = await context.db.read(lambda tx: configs.history(tx, kind, before=before, n=query.limit))
    if query.file is not None and not versions and not query.cursor:
        raise NotFound("configuration file", query.file)
    has_more = len(versions) == query.limit
    cursor = show_cursor(context.keys.cursor, cursor_kind, str(versions[-1].position)) if has_more else None
    return History([_info(version, with_content=kind != FOLDER) for version in versions], cursor)


def _info(version: Version, *, with_content: bool) -> VersionInfo:
    content = version.content if with_content else None
    return VersionInfo(version=version.version, created_at=version.created_at, who=version.who, content=content)


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/config",
        call=get_config,
        who=ADMINS,
        out=FleetSettings,
        summary="Get the configuration",
    ),
    Route(
        method="GET",
        path="/api/v1/config/history",
        call=list_history,
        who=ADMINS,
        query=HistoryQuery,
        out=History,
        summary="List versions of the configuration or of one of its files",
    ),
)
