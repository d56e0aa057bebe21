"""Which zip each bot shall run: a new release goes to a few bots first, then to all, or back for ever.

Every server builds its own zip and says which one that is; the database settles which of them counts, so that all
servers tell a bot the same. A release is good when a bot has finished a task with it or has lived with it for a
while, and bad when bots report that it was not fine. What is remembered here are copies of what the database says.
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
from myrmidon.scheduler import servers
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.context import ServerContext
from myrmidon.server.fleet.bot_zip import bot_files, build_zip, public_url
from myrmidon.server.settings import seconds
from myrmidon.server.waiting.connected_bot import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import release
from myrmidon.store.tables.release import Choice, ReleaseInfo, ReleaseState

log = structlog.get_logger("releases")

RENEW_INTERVAL: Micros = 10 * SECOND
DIGEST_CHARS = 64
_SHARE_OF_ALL = 10
"""One of so many living bots must have failed with a release that all run before it is taken back, and at least two."""


@lru_cache(maxsize=65536)
def bucket(bot_id: str) -> int:
    """0 to 99, the same for a bot on every server and for ever."""
    return int.from_bytes(sha256(bot_id.encode()).digest()[:4], "big") % 100


def release_for(context: ServerContext, bot_id: str) -> str:
    """The digest of the zip that this bot shall run."""
    hub = context.hub
    return hub.canary_release if hub.canary_release and bucket(bot_id) < hub.canary_share else hub.active_release


async def offer_zip(context: ServerContext) -> str:
    """Bring this server's zip to the database; the digest that all bots shall have is wanted from now on."""
    files = context.state.config.files
    zipped = await context.db.run_in_thread(lambda: build_zip(bot_files(public_url(context), files)))
    now, who = context.now(), context.state.config.who or _ourselves()
    offer = partial(
        release.offer, digest=zipped.digest, content=zipped.content, server=context.server.id, who=who[:256], now=now
    )
    await context.db.write(offer)
    context.state.offered_release, context.state.offered_at = zipped.digest, now
    return await update_choice(context)


def _ourselves() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


async def get_active_release(context: ServerContext) -> str:
    """The digest that all bots shall have, also in the first moments of a server."""
    return context.hub.active_release or await offer_zip(context)


async def update_choice(context: ServerContext) -> str:
    """See which zip is for whom, and have that decided where it is not; the digest of the one for all bots."""
    now = context.now()
    since = now - seconds(context.settings.release_grace_s)
    careful = 0 < context.settings.canary_percent < 100
    # A server of an older version tells bots of the active release only: beside it a few bots would go to and fro.
    wait = careful and not await context.db.read(partial(servers.all_servers_current, now=now, rules=context.rules))
    choice = await context.db.read(partial(release.current_choice, since=since, careful=careful, wait=wait))
    if choice is None:
        choice = await context.db.write(partial(release.choose, now=now, since=since, careful=careful, wait=wait))
    share = await _share(context, choice) if choice.canary else 0
    hub = context.hub
    if (hub.active_release, hub.canary_release) != (choice.active, choice.canary):
        log.info("releases", active=choice.active[:12], canary=choice.canary[:12], share=share)
    hub.active_release, hub.canary_release, hub.canary_share = choice.active, choice.canary, share
    return hub.active_release


async def _share(context: ServerContext, choice: Choice) -> int:
    """How many of a hundred bots try the new release; enough that at least one living bot does."""
    living = await context.db.read(release.alive_bots)
    if not living:
        context.hub.proven_release = choice.canary  # nobody is there to try it
    return canary_share(living, context.settings.canary_percent)


def canary_share(living: Collection[str], percent: int) -> int:
    return max(percent, min((bucket(bot_id) + 1 for bot_id in living), default=percent))


async def refresh(context: ServerContext) -> bool:
    """What a server does about releases every few seconds; True when another zip is wanted now."""
    before, now, hub = (context.hub.active_release, context.hub.canary_release), context.now(), context.hub
    if context.state.offered_release and now - context.state.offered_at >= RENEW_INTERVAL:
        await context.db.write(partial(_renew, context=context, now=now))
        context.state.offered_at = now
    if hub.proven_release and hub.proven_release == hub.canary_release:
        if await context.db.write(partial(release.promote, digest=hub.proven_release, now=now)):
            log.info("a release has shown that it is good; it goes to all bots", release=hub.proven_release)
        hub.proven_release = ""
    await update_choice(context)
    return before != (hub.active_release, hub.canary_release)


def _renew(tx: Tx, context: ServerContext, now: Micros) -> None:
    release.renew_backing(tx, context.state.offered_release, server=context.server.id, now=now)
    release.delete_old_backers(tx, now - 10 * seconds(context.settings.release_grace_s))


def check_canary_progress(context: ServerContext, seat: ConnectedBot, *, finished: bool) -> None:
    """A bot speaks; if it runs a release that is on trial, that may show that the release is good.

    A result counts only from a process that was given work: one that has just started may tell of its predecessor's.
    """
    hub = context.hub
    if seat.version != hub.canary_release or hub.proven_release == hub.canary_release:
        return
    if (finished and seat.nonce) or context.now() - seat.first_seen_at >= seconds(context.settings.canary_s):
        hub.proven_release = hub.canary_release


# ---------------------------------------------------------------- taking back


async def report_failure(context: ServerContext, bot_id: str, digest: str) -> None:
    """A bot says that a zip was not fine; from a certain number of bots on, the release is taken back."""
    hub = context.hub
    if len(digest) != DIGEST_CHARS or (digest == hub.canary_release and bucket(bot_id) >= hub.canary_share):
        return  # no zip at all, or one that this bot was never told to run
    now = context.now()
    failed = await context.db.write(partial(_note_failure, digest=digest, bot_id=bot_id, now=now))
    if failed is None:
        return
    context.metrics.release_failed()
    log.warning("a bot could not live with a release", bot=bot_id, release=digest, failures=failed)
    try:
        known = await context.db.write(partial(_judge, digest=digest, now=now))
    except WrongState as error:
        log.warning("the only release there is fails", release=digest, error=error.message)
        return
    if known is not None:
        await _taken_back(context, known)


def _note_failure(tx: Tx, digest: str, bot_id: str, now: Micros) -> int | None:
    if release.read(tx, digest) is None:
        return None
    return release.record_failure(tx, digest, bot_id, now)


def _judge(tx: Tx, digest: str, now: Micros) -> ReleaseInfo | None:
    """Take a release back if enough bots have failed with it."""
    known = next((one for one in release.read_all(tx, since=now) if one.digest == digest), None)
    if known is None or known.state == ReleaseState.BAD:
        return None
    if known.state != ReleaseState.CANARY and not exceeds_failure_limit(known.num_failures, release.num_alive_bots(tx)):
        return None
    bots = "bot" if known.num_failures == 1 else "bots"
    why = f"{known.num_failures} {bots} could not live with it"
    return release.revert(tx, digest, who="the bots", why=why, now=now)


def exceeds_failure_limit(failures: int, living: int) -> bool:
    """Two bots and a tenth of the fleet, or all bots there are: one broken machine says nothing of a release."""
    return failures >= living or (failures >= 2 and failures * _SHARE_OF_ALL >= living)


async def revert(context: ServerContext, digest: str, *, who: str, why: str) -> ReleaseInfo:
    """Take a release back by hand. Saying it again is the same as saying it once."""
    known = await context.db.write(partial(release.revert, digest=digest, who=who, why=why, now=context.now()))
    if known is None:
        raise NotFound("release", digest[:DIGEST_CHARS])
    await _taken_back(context, known)
    return known


async def _taken_back(context: ServerContext, known: ReleaseInfo) -> None:
    context.metrics.release_reverted()
    await update_choice(context)
    log.error("a release was taken back", release=known.digest, who=known.who, why=known.why, active=context.hub.active_release)
