"""Reads a bot from the database and keeps it in memory, so that idle polls need no database access."""

from __future__ import annotations

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.errors import Forbidden, WrongState
from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND
from myrmidon.server.calls import Call
from myrmidon.server.context import ServerContext
from myrmidon.server.dispatch.claims import ATTEMPT_BITS
from myrmidon.server.waiting.connected_bots import ConnectedBot
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_queues, task_to_run

RELOAD_AFTER: Micros = 600 * SECOND


class BotSnapshot(Struct, frozen=True):
    """The part of a bot's row that its polls need."""

    queues: dict[int, bool]
    """The queues that the bot serves, and whether each holds functions."""
    serving: bool
    version: str
    address: str
    nonce: int
    heartbeat: Micros
    terminating: bool
    has_work: bool
    os_family: str
    epoch: int


def require_bot_id(call: Call) -> str:
    """The id of the calling bot; ``Forbidden`` for other callers."""
    if call.who.bot_id is None:
        raise Forbidden("Only a bot may call this method; use the credential of a bot.")
    return call.who.bot_id


def read_snapshot(tx: Tx, bot_id: str, session: int, *, check_work: bool = False) -> BotSnapshot:
    """Read a bot; ``WrongState`` if this is not its live session. ``has_work`` is set only with ``check_work``."""
    bot = bots.read(tx, bot_id)
    if bot is None or bot.session != session or not bot.alive:
        raise WrongState("The session of this bot has ended; a new handshake is required.")
    terminating = bots.terminating_session(tx, bot_id)
    serving = bool(bot.serving)
    return BotSnapshot(
        queues=task_queues.kinds_of_queues(tx, bot_id) if serving else {},
        serving=serving,
        version=bot.version,
        address=bot.address,
        nonce=bot.nonce >> ATTEMPT_BITS,
        heartbeat=bot.heartbeat,
        terminating=terminating is not None and terminating >= session,
        has_work=check_work and _has_work(tx, bot_id, serving=serving),
        os_family=dimensions.os_family(dimensions.bot_sets(bot.dimensions).get("os", frozenset())),
        epoch=bot.epoch,
    )


def _has_work(tx: Tx, bot_id: str, *, serving: bool) -> bool:
    """Whether there are tasks for a bot; one that serves no queues still gets terminate tasks from its own."""
    if serving:
        return bool(task_to_run.heads(tx, bot_id))
    return bool(task_to_run.not_empty(tx, task_queues.own_queues(tx, bot_id)))


def register_bot(
    context: ServerContext, bot_id: str, session: int, snapshot: BotSnapshot, *, queue_seq: int
) -> ConnectedBot:
    """Add or update the in-memory state of a bot from the database.

    ``queue_seq`` is that of the hub before the snapshot was read. If it has grown, a queue may have been recorded that
    the snapshot lacks, while the bot was not in memory; the bot is then read again before its poll is held.
    """
    function_queues = [queue for queue, of_functions in snapshot.queues.items() if of_functions]
    bot = context.hub.register(bot_id, session, snapshot.queues, function_queues=function_queues)
    bot.version = snapshot.version
    bot.address = snapshot.address
    bot.os_family = snapshot.os_family
    bot.epoch = snapshot.epoch
    bot.directive = "terminate" if snapshot.terminating else None
    bot.nonce = max(bot.nonce, snapshot.nonce)
    bot.loaded_at = bot.seen_at = context.now()
    bot.first_seen_at = bot.first_seen_at or bot.seen_at
    bot.flushed_at = max(bot.flushed_at, snapshot.heartbeat)
    bot.outdated = context.hub.queue_seq != queue_seq
    return bot


def connected_bot(context: ServerContext, bot_id: str, session: int, now: Micros) -> ConnectedBot | None:
    """The in-memory state of a session, if there is one that is up to date."""
    bot = context.hub.bots.get(bot_id)
    if bot is None or bot.session != session or bot.outdated or now - bot.loaded_at >= RELOAD_AFTER:
        return None
    return bot


def heartbeat_write_interval(context: ServerContext) -> Micros:
    """How old the heartbeat in the database may get while polls of a bot are answered from memory."""
    return context.rules.silent_after // 2


def is_heartbeat_due(context: ServerContext, bot: ConnectedBot, now: Micros) -> bool:
    """Whether the heartbeat in the database is so old that the next request of the bot must write one."""
    return now - bot.flushed_at > 3 * heartbeat_write_interval(context)
