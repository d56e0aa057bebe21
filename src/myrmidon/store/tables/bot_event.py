"""Bot events: what happened to each bot, with its state at that moment."""

from msgspec import Struct

from myrmidon.model.bot import Bot
from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, RowDelete

EVENT_AT = "SELECT id FROM bot_events WHERE bot_id = :bot AND at = :at AND kind = :kind LIMIT 1"
_ROWS = Insert("bot_events", "bot_id, id, at, kind, message, task_id, run, dimensions, state, version")
_FACTS = Insert("bot_event_facts", "bot_id, id, address, authenticated, quarantined, maintenance")


def insert(tx: Tx, bot: Bot, event_id: int, *, at: Micros, kind: str, message: str = "") -> None:
    """Record an event with the bot's present state; only once when an earlier attempt may have been committed."""
    if tx.attempt > 1 and tx.one(EVENT_AT, bot=bot.id, at=at, kind=kind) is not None:
        return
    row = (bot.id, event_id, at, kind, message, None, None, bot.dimensions, bot.state, bot.version)
    tx.insert(_ROWS, [row])
    tx.insert(_FACTS, [(bot.id, event_id, bot.address, bot.authenticated, bot.quarantined, bot.maintenance)])


READ = """
    SELECT id, at, kind, message FROM bot_events WHERE bot_id = :id AND id < :before ORDER BY id DESC LIMIT :n
"""
OLD_EVENTS = "SELECT bot_id, id FROM bot_events WHERE at < :before ORDER BY at LIMIT :n"
_DELETE = RowDelete("bot_events", key="bot_id, id", types="text, bigint")
_DELETE_FACTS = RowDelete("bot_event_facts", key="bot_id, id", types="text, bigint")


def read(tx: Tx, bot_id: str, *, before: int, n: int) -> list[tuple[int, Micros, str, str]]:
    """A bot's events, newest first: id, time, kind, message."""
    return [(row[0], row[1], row[2], row[3]) for row in tx.all(READ, id=bot_id, before=before, n=n)]


LAST_SESSION_EVENT = """
    SELECT kind FROM bot_events
     WHERE bot_id = :id AND kind IN ('bot_connected', 'bot_shutdown', 'bot_rebooting') ORDER BY id DESC LIMIT 1
"""


def is_leaving(tx: Tx, bot_id: str) -> bool:
    """Whether the bot has announced a shutdown or reboot since it last connected."""
    row = tx.one(LAST_SESSION_EVENT, id=bot_id)
    return row is not None and row[0] != "bot_connected"


class BotEventRow(Struct, frozen=True):
    """An event, and the bot's state at that time. The last four fields are None for rows written by older code."""

    id: int
    at: Micros
    kind: str
    message: str
    task_id: int | None
    run: int | None
    dimensions: str | None
    state: str | None
    version: str | None
    address: str | None
    authenticated: str | None
    quarantined: str | None
    maintenance: str | None


READ_FULL = """
    SELECT e.id, e.at, e.kind, e.message, e.task_id, e.run, e.dimensions, e.state, e.version, f.address,
           f.authenticated, f.quarantined, f.maintenance
      FROM bot_events e LEFT JOIN bot_event_facts f ON f.bot_id = e.bot_id AND f.id = e.id
     WHERE e.bot_id = :id AND e.id >= :low AND e.id < :high ORDER BY e.id DESC LIMIT :n
"""


def read_full(tx: Tx, bot_id: str, *, low: int, high: int, n: int) -> list[BotEventRow]:
    """A bot's events with all columns, newest first."""
    return [BotEventRow(*row) for row in tx.all(READ_FULL, id=bot_id, low=low, high=high, n=n)]


CHANGED = """
    SELECT bot_id, at FROM bot_events
     WHERE at > :since AND kind {in_text:kinds} ORDER BY at LIMIT :n
"""
CHANGES = ("bot_quarantined", "bot_released", "bot_draining", "bot_terminating", "bot_deleted", "bot_revoked")


def changed(tx: Tx, *, since: Micros, n: int) -> list[tuple[str, Micros]]:
    """Bots that were quarantined, released, drained, terminated, revoked or deleted since then, and when."""
    return [(row[0], row[1]) for row in tx.all(CHANGED, since=since, n=n, kinds=CHANGES)]


SINCE = "SELECT bot_id, at FROM bot_events WHERE at >= :at ORDER BY at LIMIT :n"


def since(tx: Tx, at: Micros, n: int) -> list[tuple[str, Micros]]:
    """Bots that had an event at this time or later, with its time."""
    return [(row[0], row[1]) for row in tx.all(SINCE, at=at, n=n)]


def delete_old(tx: Tx, *, before: Micros, n: int) -> int:
    """Delete up to n events that happened before a time; how many were deleted."""
    old = tx.all(OLD_EVENTS, before=before, n=n)
    tx.delete_rows(_DELETE, old)
    tx.delete_rows(_DELETE_FACTS, old)
    return len(old)
