"""The settings folder on its way to all servers: edits are checked, stored, and picked up by everybody.

Each server looks at its own folder, and at the database for what the others have found in theirs. The newest edit
counts, whichever server saw it. An edit that is wrong is refused as a whole, loudly, and what was in force stays so.
"""

from __future__ import annotations

import asyncio
import pwd
import socket
from functools import partial
from pathlib import Path

import structlog

from myrmidon.model.errors import InvalidRequest
from myrmidon.scheduler import servers
from myrmidon.server.config.config_folder import (
    BOOTSTRAP,
    BOT_CONFIG,
    FleetConfig,
    Fingerprint,
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

log = structlog.get_logger("settings")

SETTLE_S = 0.1

_TRIES = 3
_RELEASED = (BOT_CONFIG, BOOTSTRAP)
"""Files that are in the bots' zip: an edit of one is a new release."""


async def refresh(context: ServerContext) -> bool:
    """Take over what is in force by now; True when that has changed."""
    position = await context.db.read(configs.position)
    if position in (context.state.config.position, context.state.invalid_config):
        return False
    found = await context.db.read(configs.current)
    if found is None:
        return False
    texts = {name: version.content for name, version in found.files.items()}
    try:
        fleet = build_config(texts, position=found.position, created_at=found.created_at, who=found.who)
    except InvalidRequest as error:
        # A newer server has accepted what this one does not understand; better the old settings than none.
        context.state.invalid_config = position
        _tell(context, error, "the settings in force are of a newer version; this server keeps what it has")
        return False
    await _take_over(context, fleet)
    return True


async def _take_over(context: ServerContext, fleet: FleetConfig) -> None:
    before, context.state.config = context.state.config, fleet
    context.state.invalid_config = 0
    log.info("settings of the fleet", version=fleet.version[:12], who=fleet.who, files=sorted(fleet.files))
    if fleet.asleep:
        log.warning("bots.toml says that the fleet is asleep: no bot gets any task")
    for seat in tuple(context.hub.bots.values()):
        given_other = seat.config is not None and seat.config != fleet.config_version_of(seat.bot_id)
        if given_other or fleet.may_work(seat.bot_id) != before.may_work(seat.bot_id):
            context.hub.recheck(seat.bot_id)
    if context.state.offered_release and any(before.files.get(name) != fleet.files.get(name) for name in _RELEASED):
        await rollout.offer_zip(context)


class ConfigFolderWatcher:
    """The settings folder of this server, and what it looked like when it was last looked at."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._place: Path = context.settings.config_folder
        self._seen: Fingerprint | None = None

    async def start(self) -> None:
        """What is in force, and what the folder says that nobody has heard of yet."""
        context = self._context
        await refresh(context)
        await self.poll()
        await context.db.write(partial(_order_pools, fleet=context.state.config))

    async def poll(self) -> None:
        """Pick up what other servers have found, and what has changed here."""
        await refresh(self._context)
        seen = await self._print()
        if seen == self._seen:
            return
        first, before = self._seen is None, self._seen
        if not first and seen:
            # Whoever edits may be in the middle of it, and half a file would pass for a whole one.
            await asyncio.sleep(SETTLE_S)
        if not seen and before:
            log.warning("the settings folder is gone; what was in force stays so", folder=str(self._place))
        if not seen or await self._offer(seen, first=first):
            self._seen = seen  # else it changed while it was read, and is looked at again soon

    async def _print(self) -> Fingerprint:
        return await self._context.db.run_in_thread(lambda: fingerprint(self._place))

    async def _offer(self, seen: Fingerprint, *, first: bool) -> bool:
        """Check what the folder says now, and bring it into force; False when it was changing meanwhile."""
        context = self._context
        try:
            files = await context.db.run_in_thread(lambda: read_folder(self._place))
            if await self._print() != seen:
                return False
            return await self._bring(build_config(files), seen, first=first)
        except InvalidRequest as error:
            _tell(context, error, "the settings folder is wrong; what was in force stays so")
        return True

    async def _bring(self, fleet: FleetConfig, seen: Fingerprint, *, first: bool) -> bool:
        """True when there is nothing left to do about it."""
        context = self._context
        in_force = fleet.version == context.state.config.version and not context.state.invalid_config
        if in_force or (first and not fleet.files):
            return True
        if first and await self._is_old(fleet, seen):
            log.warning(
                "the settings folder is as it was earlier, and a newer version is in force; edit a file to go back",
                folder=str(self._place),
                in_force_since=context.state.config.created_at,
                who=context.state.config.who,
            )
            return True
        return await self._put(fleet, _who(seen))

    async def _is_old(self, fleet: FleetConfig, seen: Fingerprint) -> bool:
        """Whether this server was merely started again with what it had: others know better by now."""
        if newest_change(seen) // 1000 > self._context.state.config.created_at:
            return False
        return await self._context.db.read(partial(configs.exists, version=fleet.version))

    async def _put(self, fleet: FleetConfig, who: str) -> bool:
        """Bring an edit into force for all servers; False when others were faster each time."""
        context = self._context
        files = {name: (digest_of(text), text) for name, text in fleet.files.items()}
        for _ in range(_TRIES):

            def put(
                tx: Tx, newest: int = max(context.state.config.position, context.state.invalid_config)
            ) -> int | None:
                place = configs.put(
                    tx, version=fleet.version, files=files, who=who, now=context.now(), expected_position=newest
                )
                if place is not None:
                    _order_pools(tx, fleet)
                return place

            done = await context.db.write(put) is not None
            await refresh(context)
            if done:
                return True  # else another server was faster: the edit that comes last counts
        return False


def _order_pools(tx: Tx, fleet: FleetConfig) -> None:
    """How pools order their tasks is looked up in the database by every submit."""
    for pool, rules in sorted(fleet.pools.policies.items()):
        if rules.order is not None and pool_order.of_pool(tx, pool) != rules.order:
            servers.set_pool_order(tx, pool, rules.order)


def _who(seen: Fingerprint) -> str:
    """Whose edit it was, as far as the file system tells."""
    newest = max(seen, key=lambda one: one[1], default=None)
    name = "somebody"
    if newest is not None:
        try:
            name = pwd.getpwuid(Path(newest[0]).stat().st_uid).pw_name
        except (OSError, KeyError):
            name = "somebody"
    return f"{name}@{socket.gethostname()}"[:256]


def _tell(context: ServerContext, error: InvalidRequest, what: str) -> None:
    context.metrics.config_refused()
    problems = [str(one) for one in error.problems]
    log.error(what, version=context.state.config.version[:12], problems=problems)
