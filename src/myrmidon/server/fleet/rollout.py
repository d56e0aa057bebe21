"""Rolls out bot releases: decides which bot zip each bot must run, promotes canaries, reverts failed releases.

Every server builds a zip and offers it. The database selects one of them, so that all servers tell a bot the same. With
``canary_percent`` a new release goes to a share of the bots first. It is promoted when such a bot has finished a task
with it or has run it for ``canary_s``, and reverted when a share of the bots that were told to run it report that it
fails. ``context.hub`` holds a copy of the choice, which is refreshed every few seconds.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Collection
from functools import lru_cache, partial
from hashlib import sha256

import structlog

from myrmidon.model.errors import NotFound, WrongState
from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.bot_zip import bot_files, build_zip, public_url
from myrmidon.server.settings import seconds
from myrmidon.server.waiting.connected_bots import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import release
from myrmidon.store.tables.release import Choice, ReleaseInfo, ReleaseState

log = structlog.get_logger("releases")

RENEW_INTERVAL: Micros = 10 * SECOND
"""How often a server renews its offer; other servers ignore offers older than ``release_grace_s``."""
DIGEST_CHARS = 64
_FAILING_SHARE = 3
"""A release is reverted when one of this many bots that should run it has failed with it, and at least two."""


@lru_cache(maxsize=65536)
def bucket(bot_id: str) -> int:
    """A number from 0 to 99 that never changes for a bot id: canaries are the bots with the lowest ones."""
    return int.from_bytes(sha256(bot_id.encode()).digest()[:4], "big") % 100


def release_for(context: ServerContext, bot_id: str) -> str:
    """The digest of the zip that this bot must run."""
    hub = context.hub
    return hub.canary_release if hub.canary_release and bucket(bot_id) < hub.canary_share else hub.active_release


async def offer_zip(context: ServerContext) -> str:
    """Build this server's zip, store it, and update the choice; the digest of the active release."""
    files = context.state.config.files
    zipped = await context.db.run_in_thread(lambda: build_zip(bot_files(public_url(context), files)))
    now, who = context.now(), context.state.config.who or _user_and_host()
    offer = partial(
        release.offer, digest=zipped.digest, content=zipped.content, server=context.server.id, who=who[:256], now=now
    )
    await context.db.write(offer)
    context.state.offered_release, context.state.offered_at = zipped.digest, now
    return await update_choice(context)


def _user_and_host() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


async def get_active_release(context: ServerContext) -> str:
    """The digest of the active release; builds and offers a zip if this server has just started."""
    return context.hub.active_release or await offer_zip(context)


async def update_choice(context: ServerContext) -> str:
    """Load the choice of releases, or make it if the stored one is outdated; the digest of the active release."""
    now = context.now()
    since = now - seconds(context.settings.release_grace_s)
    careful = 0 < context.settings.canary_percent < 100
    choice = await context.db.read(partial(release.current_choice, since=since, careful=careful))
    if choice is None:
        choice = await context.db.write(partial(release.choose, now=now, since=since, careful=careful))
    share = await _share(context, choice) if choice.canary else 0
    hub = context.hub
    if (hub.active_release, hub.canary_release) != (choice.active, choice.canary):
        log.info("bot releases selected", active=choice.active[:12], canary=choice.canary[:12], canary_percent=share)
    hub.active_release, hub.canary_release, hub.canary_share = choice.active, choice.canary, share
    return hub.active_release


async def _share(context: ServerContext, choice: Choice) -> int:
    alive = await context.db.read(release.alive_bots)
    if not alive:
        context.hub.proven_release = choice.canary  # no bot could ever prove it
    return canary_share(alive, context.settings.canary_percent)


def canary_share(alive: Collection[str], percent: int) -> int:
    """The percentage of bots that get the canary: at least ``percent``, and so many that one live bot gets it."""
    return max(percent, min((bucket(bot_id) + 1 for bot_id in alive), default=percent))


async def refresh(context: ServerContext) -> bool:
    """Renew the offer, promote a proven canary, update the choice; True if the choice has changed."""
    before, now, hub = (context.hub.active_release, context.hub.canary_release), context.now(), context.hub
    if context.state.offered_release and now - context.state.offered_at >= RENEW_INTERVAL:
        await context.db.write(partial(_renew, context=context, now=now))
        context.state.offered_at = now
    if hub.proven_release and hub.proven_release == hub.canary_release:
        if await context.db.write(partial(release.promote, digest=hub.proven_release, now=now)):
            log.info("canary release promoted", release=hub.proven_release)
        hub.proven_release = ""
    await update_choice(context)
    return before != (hub.active_release, hub.canary_release)


def _renew(tx: Tx, context: ServerContext, now: Micros) -> None:
    release.renew_backing(tx, context.state.offered_release, server=context.server.id, now=now)
    release.delete_old_backers(tx, now - 10 * seconds(context.settings.release_grace_s))


def check_canary_progress(context: ServerContext, bot: ConnectedBot, *, finished: bool) -> None:
    """Mark the canary as proven if this bot has finished a run with it, or has run it for ``canary_s``.

    A finished run counts only if this process of the bot has claimed a task: a process that has just started may
    report the run of its predecessor, which ran another release.
    """
    hub = context.hub
    if bot.version != hub.canary_release or hub.proven_release == hub.canary_release:
        return
    if (finished and bot.nonce) or context.now() - bot.first_seen_at >= seconds(context.settings.canary_s):
        hub.proven_release = hub.canary_release


# ---------------------------------------------------------------- failures


async def report_failure(context: ServerContext, bot_id: str, digest: str) -> None:
    """Record that a bot rejected a release, and revert the release if enough bots have.

    A report counts only if the bot was told to run the release and existed before it. Otherwise new bots, or reports
    about releases that a bot never ran, could ban a release.
    """
    if len(digest) != DIGEST_CHARS:
        return
    if digest != release_for(context, bot_id):
        await update_choice(context)  # another server may have told the bot
    if digest != release_for(context, bot_id):
        return
    now = context.now()
    num_failures = await context.db.write(partial(_record_failure, digest=digest, bot_id=bot_id, now=now))
    if num_failures is None:
        return
    context.metrics.release_failed()
    log.warning("bot rejected release", bot=bot_id, release=digest, failures=num_failures)
    try:
        hub = context.hub
        share = hub.canary_share if digest == hub.canary_release else 100
        reverted = await context.db.write(partial(_revert_if_failing, digest=digest, share=share, now=now))
    except WrongState as error:
        log.warning("failing release cannot be reverted", release=digest, error=error.message)
        return
    if reverted is not None:
        await _after_revert(context, reverted)


def _record_failure(tx: Tx, digest: str, bot_id: str, now: Micros) -> int | None:
    """How many bots have rejected this release; None if there is no such release, or the bot is newer than it."""
    info = _find(tx, digest, now)
    if info is None or bot_id not in release.bots_before(tx, info):
        return None
    return release.record_failure(tx, digest, bot_id, now)


def _find(tx: Tx, digest: str, now: Micros) -> ReleaseInfo | None:
    return next((info for info in release.read_all(tx, since=now) if info.digest == digest), None)


def _revert_if_failing(tx: Tx, digest: str, share: int, now: Micros) -> ReleaseInfo | None:
    """Revert a release if too many of the bots that should run it have failed; ``share`` is their percentage."""
    info = _find(tx, digest, now)
    if info is None or info.state == ReleaseState.BAD:
        return None
    should_run = {bot_id for bot_id in release.bots_before(tx, info) if bucket(bot_id) < share}
    num_failed = len(should_run & release.failed_bots(tx, digest))
    if not exceeds_failure_limit(num_failed, len(should_run)):
        return None
    why = f"rejected by {num_failed} of the {len(should_run)} bots that should run it"
    return release.revert(tx, digest, who="server", why=why, now=now)


def exceeds_failure_limit(failures: int, bots: int) -> bool:
    """At least two and a third of the bots that should run a release, or all of them. One machine may have a fault."""
    return 0 < bots <= failures or (failures >= 2 and failures * _FAILING_SHARE >= bots)


async def revert(context: ServerContext, digest: str, *, who: str, why: str) -> ReleaseInfo:
    """Revert a release at an administrator's request; reverting it again changes nothing."""
    info = await context.db.write(partial(release.revert, digest=digest, who=who, why=why, now=context.now()))
    if info is None:
        raise NotFound("release", digest[:DIGEST_CHARS])
    await _after_revert(context, info)
    return info


async def allow(context: ServerContext, digest: str, *, who: str, why: str) -> ReleaseInfo:
    """Lift the ban of a release at an administrator's request; allowing it again changes nothing."""
    now = context.now()
    await context.db.write(partial(release.allow, digest=digest, who=who, why=why, now=now))
    await update_choice(context)
    info = await context.db.read(partial(_find, digest=digest, now=now))
    if info is None:
        raise NotFound("release", digest[:DIGEST_CHARS])
    log.info("release allowed", release=digest, who=who, why=why, active=context.hub.active_release)
    return info


async def _after_revert(context: ServerContext, info: ReleaseInfo) -> None:
    context.metrics.release_reverted()
    await update_choice(context)
    log.error("release reverted", release=info.digest, who=info.who, why=info.why, active=context.hub.active_release)
