"""Keeps the fleet configuration of all servers on a database the same.

Each server watches its own configuration folder and stores a valid change as the new active version; so does the API
call that changes single files. Each server also polls the database for versions that others have stored. The newest
change wins, wherever it was made. An invalid change is rejected as a whole, and the active version stays.
"""

from __future__ import annotations

import asyncio
import pwd
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from myrmidon.model.errors import InvalidRequest
from myrmidon.scheduler.priority import set_pool_order
from myrmidon.server.config.config_folder import (
    BOOTSTRAP,
    BOT_CONFIG,
    BOTS,
    Fingerprint,
    FleetConfig,
    build_config,
    digest_of,
    fingerprint,
    newest_change,
    read_folder,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet import rollout
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import pool_order
from myrmidon.store.tables import settings_version as configs

log = structlog.get_logger("config")

SETTLE_S = 0.1
"""How long a changed folder is left alone before it is read, so that an editor can finish writing a file."""
_ATTEMPTS = 3
_ZIPPED_FILES = (BOT_CONFIG, BOOTSTRAP)
"""Files that are part of the bot zip: a change of one creates a new release."""


async def refresh(context: ServerContext) -> bool:
    """Load the active configuration from the database; True if it is another one than before."""
    position = await context.db.read(configs.position)
    if position in (context.state.config.position, context.state.invalid_config):
        return False
    stored = await context.db.read(configs.current)
    if stored is None:
        return False
    texts = {name: version.content for name, version in stored.files.items()}
    try:
        config = build_config(texts, position=stored.position, created_at=stored.created_at, who=stored.who)
    except InvalidRequest as error:
        # A server of a newer version has accepted what this one cannot parse.
        context.state.invalid_config = position
        _report_invalid(context, error, "active configuration is invalid for this version; keeping the previous one")
        return False
    await _activate(context, config)
    return True


async def _activate(context: ServerContext, config: FleetConfig) -> None:
    before, context.state.config = context.state.config, config
    context.state.invalid_config = 0
    log.info("configuration active", version=config.version[:12], who=config.who, files=sorted(config.files))
    if config.asleep:
        log.warning("fleet is asleep; no bot gets tasks", file=BOTS)
    for bot in tuple(context.hub.bots.values()):
        outdated = bot.config is not None and bot.config != config.config_version_of(bot.bot_id)
        if outdated or config.may_work(bot.bot_id) != before.may_work(bot.bot_id):
            context.hub.recheck(bot.bot_id)
    if context.state.offered_release and any(
        before.files.get(name) != config.files.get(name) for name in _ZIPPED_FILES
    ):
        await rollout.offer_zip(context)


class ConfigFolderWatcher:
    """Stores changes of this server's configuration folder as the active version, and loads those of other servers."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._folder: Path = context.settings.config_folder
        self._last: Fingerprint | None = None
        """The fingerprint of the folder when it was last handled; None before the first time."""

    async def start(self) -> None:
        """Load the active configuration, store the folder if it is newer, and set the order of the pools."""
        context = self._context
        await refresh(context)
        await self.poll()
        await context.db.write(partial(_set_pool_orders, context=context, config=context.state.config))

    async def poll(self) -> None:
        """Load what other servers have stored, and store what has changed in the folder."""
        await refresh(self._context)
        current = await self._fingerprint()
        if current == self._last:
            return
        first, before = self._last is None, self._last
        if not first and current:
            # A half written file may parse, and would be taken for a whole one.
            await asyncio.sleep(SETTLE_S)
        if not current and before:
            log.warning("configuration folder is missing; keeping the active configuration", folder=str(self._folder))
        if not current or await self._handle_change(current, first=first):
            self._last = current  # otherwise the next poll tries again

    async def _fingerprint(self) -> Fingerprint:
        return await self._context.db.run_in_thread(lambda: fingerprint(self._folder))

    async def _handle_change(self, current: Fingerprint, *, first: bool) -> bool:
        """Check the folder and activate it if it is valid; False to try again, because it changed meanwhile."""
        context = self._context
        try:
            files = await context.db.run_in_thread(lambda: read_folder(self._folder))
            if await self._fingerprint() != current:
                return False
            return await self._store_if_new(build_config(files), current, first=first)
        except InvalidRequest as error:
            _report_invalid(context, error, "configuration folder is invalid; keeping the active configuration")
        return True

    async def _store_if_new(self, config: FleetConfig, current: Fingerprint, *, first: bool) -> bool:
        """Store a valid configuration unless it is active, or older than the active one; False to try again."""
        context = self._context
        is_active = config.version == context.state.config.version and not context.state.invalid_config
        if is_active or (first and not config.files):
            return True
        if first and await self._is_old(config, current):
            log.warning(
                "configuration folder has an old version; edit or touch a file to activate it",
                folder=str(self._folder),
                active_since=context.state.config.created_at,
                who=context.state.config.who,
            )
            return True
        return await self._store(config, _author(current))

    async def _is_old(self, config: FleetConfig, current: Fingerprint) -> bool:
        """Whether the folder was active once and has not been edited since another version became active."""
        if newest_change(current) // 1000 > self._context.state.config.created_at:
            return False
        return await self._context.db.read(partial(configs.exists, version=config.version))

    async def _store(self, config: FleetConfig, who: str) -> bool:
        """Make a configuration the active one for all servers; False if other servers stored theirs at each attempt."""
        context = self._context
        for _ in range(_ATTEMPTS):
            newest = max(context.state.config.position, context.state.invalid_config)
            put = partial(put_config, context=context, config=config, who=who, expected_position=newest)
            stored = await context.db.write(put)
            await refresh(context)
            if stored:
                return True
        return False


def put_config(tx: Tx, context: ServerContext, config: FleetConfig, *, who: str, expected_position: int) -> bool:
    """Store a configuration as the active one; False if the active one is no longer at the expected position."""
    files = {name: (digest_of(text), text) for name, text in config.files.items()}
    position = configs.put(
        tx, version=config.version, files=files, who=who, now=context.now(), expected_position=expected_position
    )
    if position is not None:
        _set_pool_orders(tx, context, config)
    return position is not None


def _set_pool_orders(tx: Tx, context: ServerContext, config: FleetConfig) -> None:
    """Write the task orders of ``pools.toml`` to the database, where every submit looks them up."""
    for pool, policy in sorted(config.pools.policies.items()):
        if policy.order is not None and pool_order.of_pool(tx, pool) != policy.order:
            set_pool_order(tx, pool, policy.order, now=context.now(), ids=context.ids)


def _author(entries: Fingerprint) -> str:
    """The owner of the file that changed last, and this host."""
    newest = max(entries, key=lambda entry: entry[1], default=None)
    name = "unknown"
    if newest is not None:
        with suppress(OSError, KeyError):
            name = pwd.getpwuid(Path(newest[0]).stat().st_uid).pw_name
    return f"{name}@{socket.gethostname()}"[:256]


def _report_invalid(context: ServerContext, error: InvalidRequest, event: str) -> None:
    context.metrics.config_rejected()
    problems = [str(problem) for problem in error.problems]
    log.error(event, active_version=context.state.config.version[:12], problems=problems)
