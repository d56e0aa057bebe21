"""Bots: their present state, dimensions, heartbeats and settings."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from myrmidon.model.bot import Bot
from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert, RowUpdate

_COLUMNS = ", ".join(Bot.__struct_fields__)
_BOTS = Insert("bots", _COLUMNS)
READ = f"SELECT {_COLUMNS} FROM bots WHERE id = :id"
LOCK = f"SELECT {_COLUMNS} FROM bots WHERE id = :id {{for_update}}"
LOCK_MANY = f"SELECT {_COLUMNS} FROM bots WHERE id {{in_text:ids}} ORDER BY id {{for_update}}"
LOCK_MANY_UNLOCKED = f"SELECT {_COLUMNS} FROM bots WHERE id {{in_text:ids}} ORDER BY id {{skip_locked}}"


def read(tx: Tx, bot_id: str) -> Bot | None:
    row = tx.one(READ, id=bot_id)
    return Bot(*row) if row else None


EPOCH = "SELECT epoch FROM bots WHERE id = :id"


def epoch(tx: Tx, bot_id: str) -> int | None:
    """The epoch of a bot's valid credentials; None when there is no such bot."""
    row = tx.one(EPOCH, id=bot_id)
    return row[0] if row else None


def lock(tx: Tx, bot_id: str) -> Bot | None:
    """Lock a bot. Jobs and tasks are locked before bots; no other lock is waited for after this one."""
    row = tx.one(LOCK, id=bot_id)
    return Bot(*row) if row else None


def lock_many(tx: Tx, ids: Sequence[str], *, skip_locked: bool = False) -> dict[str, Bot]:
    """Lock bots; ``skip_locked``: only those that are not locked."""
    return {row[0]: Bot(*row) for row in tx.all(LOCK_MANY_UNLOCKED if skip_locked else LOCK_MANY, ids=ids)}


READ_MANY = f"SELECT {_COLUMNS} FROM bots WHERE id {{in_text:ids}} ORDER BY id"


def read_many(tx: Tx, ids: Sequence[str]) -> list[Bot]:
    return [Bot(*row) for row in tx.all(READ_MANY, ids=ids)] if ids else []


def insert(tx: Tx, bot: Bot) -> bool:
    """Add a bot; False when another server has just added it."""
    return tx.insert_new(_BOTS, [structs.astuple(bot)]) == 1


_SAVE = RowUpdate(
    "bots",
    key="id",
    sets=", ".join(name for name in Bot.__struct_fields__ if name != "id"),
    types="""text, bigint, bigint, text, text, text, text, text, text, int, int, int, text, text, bigint, bigint,
        bigint, int, bigint, bigint, bigint, bigint, bigint, text""",
)


def save(tx: Tx, bot: Bot) -> None:
    """Write a locked bot; ``serving`` is computed here."""
    bot.serving = int(bool(bot.alive) and not bot.draining and bot.quarantined is None and bot.maintenance is None)
    tx.update_rows(_SAVE, [structs.astuple(bot)])


HEARTBEAT = "UPDATE bots SET heartbeat = :now WHERE id = :id AND session = :session AND heartbeat < :now"
# Unlike HEARTBEAT this also writes when a heartbeat of the same or a later time is stored: idle_at must be recorded.
HEARTBEAT_AND_IDLE = """
    UPDATE bots SET heartbeat = CASE WHEN heartbeat < :now THEN :now ELSE heartbeat END, idle_at = :now
     WHERE id = :id AND session = :session
"""
HEARTBEAT_IF_ALIVE = f"{HEARTBEAT} AND alive = 1"
SAVE_CLAIM = "UPDATE bots SET heartbeat = :now, nonce = :nonce WHERE id = :id"
SAVE_CLAIM_AND_IDLE = "UPDATE bots SET heartbeat = :now, nonce = :nonce, idle_at = :idle_at WHERE id = :id"


def heartbeat(tx: Tx, bot_id: str, session: int, now: Micros, *, idle: bool = False) -> None:
    """Record a heartbeat, which keeps every run of this session alive. ``idle``: a run has just ended."""
    tx.run(HEARTBEAT_AND_IDLE if idle else HEARTBEAT, id=bot_id, session=session, now=now)


def end_runs(tx: Tx, bot_id: str, session: int, now: Micros) -> None:
    """Record a heartbeat after runs have ended: with the claim that follows, or at the end of the transaction."""
    tx.defer(_write_ends, [(bot_id, session, now)])


def _write_ends(tx: Tx, ends: Sequence[tuple[str, int, Micros]]) -> None:
    for bot_id, session, at in ends:
        heartbeat(tx, bot_id, session, at, idle=True)


def heartbeat_if_alive(tx: Tx, bot_id: str, session: int, now: Micros) -> bool:
    """Record a heartbeat of a live session; False when the session has ended or a later heartbeat is stored."""
    return tx.run(HEARTBEAT_IF_ALIVE, id=bot_id, session=session, now=now) == 1


def save_claim(tx: Tx, bot: Bot, nonce: int, now: Micros) -> None:
    """Record the nonce of a locked bot's last claim, and the end of runs that is not written yet (`end_runs`)."""
    at = max(now, bot.heartbeat)
    ends = tx.deferred(_write_ends)
    if ends and ends[-1][:2] == (bot.id, bot.session):
        bot.idle_at = ends[-1][2]
        ends.clear()
        tx.run(SAVE_CLAIM_AND_IDLE, id=bot.id, nonce=nonce, now=at, idle_at=bot.idle_at)
    else:
        tx.run(SAVE_CLAIM, id=bot.id, nonce=nonce, now=at)


SET_STATE = "UPDATE bots SET state = :state WHERE id = :id AND session = :session"


def set_state(tx: Tx, bot_id: str, session: int, state: str) -> None:
    """Store the state that a bot reports besides its dimensions: free disk space, load, versions."""
    tx.run(SET_STATE, id=bot_id, session=session, state=state)


_HEARTBEATS = RowUpdate("bots", key="id, session", sets="heartbeat", where="alive = 1", types="text, bigint, bigint")
LIVE_SESSIONS = "SELECT id, session FROM bots WHERE id {in_text:ids} AND alive = 1"


def heartbeat_many(tx: Tx, beats: Sequence[tuple[str, int, Micros]]) -> list[str]:
    """Record heartbeats (bot, session, time) of many idle bots; returns the bots whose sessions have ended."""
    if tx.update_rows(_HEARTBEATS, sorted(beats)) == len(beats):
        return []
    live = set(tx.all(LIVE_SESSIONS, ids=[bot_id for bot_id, _, _ in beats]))
    return [bot_id for bot_id, session, _ in beats if (bot_id, session) not in live]


DUE = "SELECT id FROM bots WHERE due_at <= :now ORDER BY due_at LIMIT :n"


def due(tx: Tx, now: Micros, n: int) -> list[str]:
    """Bots whose heartbeat may be overdue; the caller checks again under a lock."""
    return [row[0] for row in tx.all(DUE, now=now, n=n)]


POSTPONE_CHECKS = """
    UPDATE bots SET due_at = heartbeat + :dead_after
     WHERE id {in_text:ids} AND alive = 1 AND heartbeat > :now - :dead_after
"""


def postpone_checks(tx: Tx, ids: Sequence[str], *, now: Micros, dead_after: Micros) -> int:
    """Move the next check of those bots that have sent a heartbeat lately; how many those were."""
    return tx.run(POSTPONE_CHECKS, ids=ids, now=now, dead_after=dead_after)


CORRECT_HEARTBEATS = """
    UPDATE bots SET heartbeat = :now, due_at = CASE WHEN alive = 1 THEN :now + :dead_after END WHERE heartbeat > :now
"""


def correct_heartbeats(tx: Tx, *, now: Micros, dead_after: Micros) -> None:
    """Set heartbeats in the future to now; they were written under a clock that was ahead."""
    tx.run(CORRECT_HEARTBEATS, now=now, dead_after=dead_after)


_DIMENSIONS = Insert("bot_dimensions", "dimension, bot_id")
DROP_DIMENSIONS = "DELETE FROM bot_dimensions WHERE bot_id = :id"
DELETE = "DELETE FROM bots WHERE id = :id"
DELETE_SETTINGS = "DELETE FROM bot_settings WHERE bot_id = :id"


def set_dimensions(tx: Tx, bot_id: str, flat: Sequence[str]) -> None:
    """Replace the dimensions (``key:value``) by which a bot is found."""
    tx.run(DROP_DIMENSIONS, id=bot_id)
    tx.insert(_DIMENSIONS, [(dimension, bot_id) for dimension in sorted(set(flat))])


def delete(tx: Tx, bot_id: str) -> None:
    """Delete a bot; its events stay until their retention ends."""
    for text in (DROP_DIMENSIONS, DELETE_SETTINGS, DELETE):
        tx.run(text, id=bot_id)


_SETTINGS = Insert("bot_settings", "bot_id, quarantined")
SETTINGS = "SELECT quarantined FROM bot_settings WHERE bot_id = :id"
SET_QUARANTINE = "UPDATE bot_settings SET quarantined = :why WHERE bot_id = :id"


def quarantine_setting(tx: Tx, bot_id: str) -> str | None:
    """Why an administrator has quarantined this bot; None when none has."""
    row = tx.one(SETTINGS, id=bot_id)
    return row[0] if row else None


def set_quarantine(tx: Tx, bot_id: str, why: str | None) -> None:
    tx.insert_new(_SETTINGS, [(bot_id, None)])
    tx.run(SET_QUARANTINE, id=bot_id, why=why)


TERMINATING_SESSION = "SELECT ends_session FROM bot_settings WHERE bot_id = :id"
SET_TERMINATING_SESSION = "UPDATE bot_settings SET ends_session = :session WHERE bot_id = :id"


def terminating_session(tx: Tx, bot_id: str) -> int | None:
    """The session that was told to terminate. A bot that was started again since then has a later one, and stays."""
    row = tx.one(TERMINATING_SESSION, id=bot_id)
    return row[0] if row else None


def set_terminating_session(tx: Tx, bot_id: str, session: int) -> None:
    tx.insert_new(_SETTINGS, [(bot_id, None)])
    tx.run(SET_TERMINATING_SESSION, id=bot_id, session=session)


BOTS_WITH = """
    SELECT b.id, b.dimensions, b.serving, b.heartbeat FROM bot_dimensions d JOIN bots b ON b.id = d.bot_id
     WHERE d.dimension = :dimension ORDER BY b.id
"""


class BotWith(NamedTuple):
    """What matching needs of a bot. ``serving``: it is alive and gets tasks."""

    id: str
    dimensions: str
    serving: int
    heartbeat: Micros


def bots_with(tx: Tx, dimension: str) -> list[BotWith]:
    """All bots with this dimension (``key:value``), dead ones too."""
    return [BotWith(*row) for row in tx.all(BOTS_WITH, dimension=dimension)]
