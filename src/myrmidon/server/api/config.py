"""The configuration folder: the version in force, its files, and the history of both."""

from __future__ import annotations

from myrmidon.model.errors import Conflict, NotFound
from myrmidon.server.calls import ADMINS, Call, Routes
from myrmidon.server.config.config_folder import MAX_FILE_BYTES, FleetConfig, build_config, check_files
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import config_sync
from myrmidon.server.usecases.idempotency import claim_call_key
from myrmidon.server.usecases.pagination import read_cursor, show_cursor
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import settings_version as configs
from myrmidon.store.tables.settings_version import FOLDER, Version
from myrmidon.wire.config import ConfigChange, ConfigChanged, FleetSettings, History, HistoryQuery, VersionInfo

ROUTES = Routes()

_LAST = (1 << 63) - 1
MAX_CHANGE_BYTES = 8 * MAX_FILE_BYTES
"""Room for some files of the largest size, which JSON may make larger."""


@ROUTES.add("GET", "/api/v1/config", ADMINS, "Get the configuration")
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


@ROUTES.add(
    "GET",
    "/api/v1/config/history",
    ADMINS,
    "List versions of the configuration or of one of its files",
    query=HistoryQuery,
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


@ROUTES.add(
    "POST",
    "/api/v1/config",
    ADMINS,
    "Change files of the configuration",
    body=ConfigChange,
    body_limit=MAX_CHANGE_BYTES,
    mutates=True,
)
async def change_config(context: ServerContext, call: Call) -> ConfigChanged:
    """Check a change of some files together with the other active ones, and activate it for all servers."""
    body: ConfigChange = call.body
    active = await context.db.read(configs.current)
    texts = {name: file.content for name, file in active.files.items()} if active is not None else {}
    if body.base is not None and body.base != (active.version if active is not None else ""):
        raise Conflict("The configuration has changed meanwhile: read it again and repeat the change.")
    for name, text in body.files.items():
        if text is not None:
            texts[name] = text
        else:
            texts.pop(name, None)
    check_files(texts)
    config = build_config(texts)
    if not body.dry_run and (active is None or active.version != config.version):
        await _activate(context, call, config, active.position if active is not None else 0)
    return ConfigChanged(version=config.version, dry_run=body.dry_run)


async def _activate(context: ServerContext, call: Call, config: FleetConfig, position: int) -> None:
    def put(tx: Tx) -> bool:
        if not claim_call_key(tx, call, "change", "configuration", now=context.now()):
            return True
        return config_sync.put_config(tx, context, config, who=call.who.name, expected_position=position)

    if not await context.db.write(put):
        raise Conflict("The configuration has changed meanwhile: read it again and repeat the change.")
    await config_sync.refresh(context)


def _info(version: Version, *, with_content: bool) -> VersionInfo:
    content = version.content if with_content else None
    return VersionInfo(version=version.version, created_at=version.created_at, who=version.who, content=content)
