"""Bots and what happened to them."""

from collections.abc import Sequence

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


def read(tx: Tx, bot_id: str) -> Bot | None:
    row = tx.one(READ, id=bot_id)
    return Bot(*row) if row else None


def lock(tx: Tx, bot_id: str) -> Bot | None:
    """A bot, locked; after jobs and tasks, and nothing is waited for behind it."""
    row = tx.one(LOCK, id=bot_id)
    return Bot(*row) if row else None


def lock_many(tx: Tx, ids: Sequence[str]) -> dict[str, Bot]:
    return {row[0]: Bot(*row) for row in tx.all(LOCK_MANY, ids=ids)}


READ_MANY = f"SELECT {_COLUMNS} FROM bots WHERE id {{in_text:ids}} ORDER BY id"


def read_many(tx: Tx, ids: Sequence[str]) -> list[Bot]:
    return [Bot(*row) for row in tx.all(READ_MANY, ids=ids)] if ids else []


def insert(tx: Tx, bot: Bot) -> bool:
    """A bot never seen before; False when another server has just met it."""
    return tx.insert_new(_BOTS, [structs.astuple(bot)]) == 1


_SAVE = RowUpdate(
    "bots",
    key="id",
    sets=", ".join(name for name in Bot.__struct_fields__ if name != "id"),
    types="""text, bigint, bigint, text, text, text, text, text, text, int, int, int, text, text, bigint, bigint,
        bigint, int, bigint, bigint, bigint""",
)


def save(tx: Tx, bot: Bot) -> None:
    """Write a locked bot."""
    bot.serving = int(bool(bot.alive) and not bot.draining and bot.quarantined is None and bot.maintenance is None)
    tx.update_rows(_SAVE, [structs.astuple(bot)])


BEAT = "UPDATE bots SET heartbeat = :now WHERE id = :id AND session = :session AND heartbeat < :now"
# A text of its own: the end of a run is written down though a sign of life of that moment, or of a later one, was.
IDLE = """
    UPDATE bots SET heartbeat = CASE WHEN heartbeat < :now THEN :now ELSE heartbeat END, idle_at = :now
     WHERE id = :id AND session = :session
"""
STILL_HERE = f"{BEAT} AND alive = 1"
CLAIMED = "UPDATE bots SET heartbeat = :now, nonce = :nonce WHERE id = :id"


def beat(tx: Tx, bot_id: str, session: int, now: Micros, *, idle: bool = False) -> None:
    """A sign of life; it keeps every run of this session alive with one write. ``idle``: a run has just ended."""
    tx.run(IDLE if idle else BEAT, id=bot_id, session=session, now=now)


def still_here(tx: Tx, bot_id: str, session: int, now: Micros) -> bool:
    """A sign of life of a session that goes on; False when it has ended, or was heard of at a later moment."""
    return tx.run(STILL_HERE, id=bot_id, session=session, now=now) == 1


def claimed(tx: Tx, bot: Bot, nonce: int, now: Micros) -> None:
    """Remember the last claim of a locked bot."""
    tx.run(CLAIMED, id=bot.id, nonce=nonce, now=max(now, bot.heartbeat))


SET_STATE = "UPDATE bots SET state = :state WHERE id = :id AND session = :session"


def set_state(tx: Tx, bot_id: str, session: int, state: str) -> None:
    """What a bot says of itself besides its dimensions: free space, load, versions."""
    tx.run(SET_STATE, id=bot_id, session=session, state=state)


_BEATS = RowUpdate("bots", key="id, session", sets="heartbeat", types="text, bigint, bigint")


def beat_many(tx: Tx, beats: Sequence[tuple[str, int, Micros]]) -> None:
    """Signs of life of idle bots (id, session, when), flushed together."""
    tx.update_rows(_BEATS, sorted(beats))


ALARMS = "SELECT id FROM bots WHERE alarm_at <= :now ORDER BY alarm_at LIMIT :n"


def alarms(tx: Tx, now: Micros, n: int) -> list[str]:
    """Bots that should have been heard of by now; look before you believe it."""
    return [row[0] for row in tx.all(ALARMS, now=now, n=n)]


HEARD = """
    UPDATE bots SET alarm_at = heartbeat + :dead_after
     WHERE id {in_text:ids} AND alive = 1 AND heartbeat > :now - :dead_after
"""


def put_off(tx: Tx, ids: Sequence[str], *, now: Micros, dead_after: Micros) -> int:
    """Let those of these bots that were heard of lately be looked at later; how many those were."""
    return tx.run(HEARD, ids=ids, now=now, dead_after=dead_after)


_DIMENSIONS = Insert("bot_dimensions", "dimension, bot_id")
DROP_DIMENSIONS = "DELETE FROM bot_dimensions WHERE bot_id = :id"
DELETE = "DELETE FROM bots WHERE id = :id"
DELETE_SETTINGS = "DELETE FROM bot_settings WHERE bot_id = :id"


def set_dimensions(tx: Tx, bot_id: str, flat: Sequence[str]) -> None:
    """Replace what the bot is found by."""
    tx.run(DROP_DIMENSIONS, id=bot_id)
    tx.insert(_DIMENSIONS, [(dimension, bot_id) for dimension in sorted(set(flat))])


def delete(tx: Tx, bot_id: str) -> None:
    """Forget a bot; its events stay until their retention ends."""
    for text in (DROP_DIMENSIONS, DELETE_SETTINGS, DELETE):
        tx.run(text, id=bot_id)


_SETTINGS = Insert("bot_settings", "bot_id, quarantined")
SETTINGS = "SELECT quarantined FROM bot_settings WHERE bot_id = :id"
SET_QUARANTINE = "UPDATE bot_settings SET quarantined = :why WHERE bot_id = :id"


def quarantine_setting(tx: Tx, bot_id: str) -> str | None:
    """Why an administrator keeps this bot from working."""
    row = tx.one(SETTINGS, id=bot_id)
    return row[0] if row else None


def set_quarantine(tx: Tx, bot_id: str, why: str | None) -> None:
    tx.insert_new(_SETTINGS, [(bot_id, None)])
    tx.run(SET_QUARANTINE, id=bot_id, why=why)


ENDING = "SELECT ends_session FROM bot_settings WHERE bot_id = :id"
SET_ENDING = "UPDATE bot_settings SET ends_session = :session WHERE bot_id = :id"


def ending(tx: Tx, bot_id: str) -> int | None:
    """The last session of a bot that shall end; a bot that was started again since then may stay."""
    row = tx.one(ENDING, id=bot_id)
    return row[0] if row else None


def set_ending(tx: Tx, bot_id: str, session: int) -> None:
    tx.insert_new(_SETTINGS, [(bot_id, None)])
    tx.run(SET_ENDING, id=bot_id, session=session)


WITH = """
    SELECT b.dimensions FROM bot_dimensions d JOIN bots b ON b.id = d.bot_id
     WHERE d.dimension = :dimension ORDER BY b.id
"""


def dimensions_of_those_with(tx: Tx, dimension: str) -> list[str]:
    """What the bots with a certain dimension (``key:value``) have, dead ones too."""
    return [row[0] for row in tx.all(WITH, dimension=dimension)]
